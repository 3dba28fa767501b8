"""Numbers as people read them, and columns that line up."""

from __future__ import annotations

import io

import pytest

from ramerge.cli.render import coloured, columns, percent, seconds, size


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1_600_000, "1.6 MB"),
        (15.2e9, "15.2 GB"),
        (3e15, "3000.0 TB"),
    ],
)
def test_size(nbytes, text):
    assert size(nbytes) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.42, "0.4 s"), (99.94, "99.9 s"), (200, "3 min 20 s"), (3900, "1 h 5 min")],
)
def test_seconds(value, text):
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0.0 %"), (1, "100.0 %"), (0.032, "3.2 %"), (1e-6, "0.0001 %"), (0.99999, "99.9990 %")],
)
def test_a_share_that_is_almost_nothing_or_everything_does_not_read_as_such(share, text):
    assert percent(share) == text


def test_columns_line_up():
    assert columns([("a", "1"), ("bcd", "22")], right=[1]) == "a     1\nbcd  22"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_colour_obeys_the_terminal_and_no_color(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert coloured(Terminal())
    assert not coloured(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not coloured(Terminal())
