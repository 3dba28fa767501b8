"""Data frames and figures of a report hold the report's own numbers, whichever library is there."""

from __future__ import annotations

import sys

import pytest

import ramerge
from helpers.models import save_agent, save_base


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    root = tmp_path_factory.mktemp("frames")
    base = save_base(root / "base")
    agents = {n: save_agent(root / n, base, seed=i, density=0.3) for i, n in enumerate("ab")}
    return ramerge.probe(base=base, agents=agents)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_has_a_row_per_place_and_agent(report, library):
    pytest.importorskip(library)
    frame = report.to_dataframe(library)
    assert type(frame).__module__.startswith(library)
    rows = [(p, a) for p in report.data["layers"] for a in p["agents"]]
    assert list(frame["changed"]) == [a["changed"] for _, a in rows]
    assert list(frame["module"]) == [p["module"] for p, _ in rows]
    assert int(frame["changed"].sum()) == sum(a["changed"] for a in report.data["agents"])


def test_polars_serves_where_pandas_is_missing(report, monkeypatch):
    polars = pytest.importorskip("polars")
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert isinstance(report.to_dataframe(), polars.DataFrame)
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ramerge.MergeError, match=r"^data frames need pandas or polars"):
        report.to_dataframe()
    with pytest.raises(ramerge.MergeError, match=r"^data frames need polars"):
        report.to_dataframe("polars")


def test_another_library_is_refused(report):
    with pytest.raises(ramerge.MergeError, match=r"^`dask` is not a data-frame library"):
        report.to_dataframe("dask")


def test_figures_hold_the_numbers(report):
    pytest.importorskip("plotly")
    data, pair = report.data, report.data["pairs"][0]
    assert list(report.figure("overlap").data[0].y) == [
        i["elements"] for i in data["intersections"]
    ]
    for name, key in (("cosine", "cosine"), ("conflict", "sign_conflict"), ("chance", "ratio")):
        assert report.figure(name).data[0].z[0][1] == pair[key]
    assert [len(trace.x) for trace in report.figure("magnitude").data] == [
        len(a["magnitudes"]) for a in data["agents"]
    ]
    assert len(report.figure("density").data) == 2
    assert "plotly" in report.figure("density").to_html(include_plotlyjs=False).lower()


def test_without_plotly_the_way_out_is_named(report, monkeypatch):
    for name in ("plotly", "plotly.subplots", "plotly.graph_objects"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("density", "cosine"):
        with pytest.raises(ramerge.MergeError, match="figures need plotly"):
            report.figure(name)
