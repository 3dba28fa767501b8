"""The runner against a real HTTP server: retries, bounds, resume after kill -9, errors kept apart from wrong answers."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("math_verify")

from helpers.evaluate import Reply, by_question, serving, write_rows
from ramerge._errors import ConfigError, CorruptInputError, HubError, OutputBusyError, OutputError
from ramerge.evaluate.asking import Asker, Pace
from ramerge.evaluate.records import (
    Answer,
    Options,
    Prompt,
    RetryableError,
    Sampling,
    UnansweredError,
)
from ramerge.evaluate.runner import run
from ramerge.evaluate.store import Store

HERE = Path(__file__).parents[1] / "helpers"
ROWS = [
    {"question": "How many legs have 3 cats?", "answer": "3*4\n#### 12"},
    {"question": "A shop sells 1,000 apples and 200 pears. Fruits?", "answer": "#### 1,200"},
    {"question": "Half of 7?", "answer": "#### 3.5"},
]
GOLD = {"cats": "\\boxed{12}", "apples": "so \\boxed{1200}", "Half": "\\boxed{\\frac{7}{2}}"}


def evaluate(tmp_path, script, rows=ROWS, **more):
    data = {"gsm8k": write_rows(tmp_path / "gsm8k.jsonl", rows)}
    with serving(script) as (url, server):
        report = run({"m": url}, ["math"], out=tmp_path / "out", options=Options(data=data), **more)
    return report, server


def cell(report, model="m"):
    return report.cells[model]["GSM8K", "accuracy"]


def test_gold_scores_100_and_wrong_scores_0(tmp_path):
    report, _ = evaluate(tmp_path / "", by_question(GOLD))
    assert (cell(report).score.mean, cell(report).score.n, report.errors) == (100.0, 3, 0)
    (tmp_path / "wrong").mkdir()
    report, _ = evaluate(tmp_path / "wrong", by_question({}, otherwise="\\boxed{13}"))
    assert cell(report).score.mean == 0.0


def test_what_went_wrong_is_told_apart(tmp_path):
    script = by_question(
        {
            "cats": Reply("\\boxed{1", finish="length"),
            "apples": "twelve hundred",
            "Half": Reply(status=400, raw=b"{}"),
        }
    )
    report, server = evaluate(tmp_path, script)
    assert cell(report).flags == {"malformed": 2, "truncated": 1}
    assert cell(report).errors == report.errors == 1
    assert cell(report).score.n == 2  # the failed task is in no score ...
    assert report.averages["m"] == {}  # ... and an incomplete column in no average
    assert sum("Half" in b["messages"][-1]["content"] for b in server.bodies) == 1  # 400 is final


def test_an_answer_inside_unfinished_reasoning_does_not_count(tmp_path):
    script = by_question(
        {"cats": Reply("<think>\\boxed{12}", finish="length")},
        "<think>\\boxed{9}</think> \\boxed{1200}",
    )
    report, _ = evaluate(tmp_path, script)
    assert cell(report).score.mean == pytest.approx(100 / 3)


@pytest.mark.parametrize(
    "failure",
    [
        Reply(status=503, raw=b"busy"),
        Reply(status=429, raw=b"{}", headers={"Retry-After": "0.01"}),
        Reply(raw=b"<html>not json</html>"),
        Reply(raw=b'{"choices": []}'),
        Reply("late", delay=0.6),
    ],
    ids=["503", "429", "html", "empty", "slow"],
)
def test_a_passing_failure_is_retried(tmp_path, failure):
    seen = set()

    def script(body):
        text = body["messages"][-1]["content"]
        first = text not in seen
        seen.add(text)
        return failure if first else by_question(GOLD)(body)

    report, server = evaluate(tmp_path, script, pace=Pace(timeout_s=0.3))
    assert cell(report).score.mean == 100.0
    assert len(server.bodies) == 6


def test_a_lasting_failure_is_an_error_and_asked_again_next_time(tmp_path):
    report, server = evaluate(
        tmp_path, by_question({**GOLD, "Half": Reply(status=500, raw=b"")}), pace=Pace(attempts=2)
    )
    assert report.errors == 1
    assert len(server.bodies) == 4
    assert "HTTP 500 (2 attempts)" in (tmp_path / "out" / "outcomes.jsonl").read_text()


def test_a_finished_run_asks_nothing_again(tmp_path):
    data = {"gsm8k": write_rows(tmp_path / "gsm8k.jsonl", ROWS)}
    with serving(by_question(GOLD)) as (url, server):
        for _ in range(2):
            run({"m": url}, ["math"], out=tmp_path / "out", options=Options(data=data))
        assert len(server.bodies) == 3


def test_a_refused_key_ends_the_run(tmp_path):
    with pytest.raises(HubError, match="answers 401"):
        evaluate(tmp_path, by_question({}, otherwise=Reply(status=401, raw=b"{}")))


def test_nobody_there(tmp_path):
    with pytest.raises(HubError, match="no OpenAI-compatible endpoint answers"):
        run(
            {"m": "http://127.0.0.1:9/v1"},
            ["math"],
            out=tmp_path,
            options=Options(data={"gsm8k": write_rows(tmp_path / "g.jsonl", ROWS)}),
        )


def test_unknown_suite_and_missing_file(tmp_path):
    with pytest.raises(ConfigError, match="no suite `maths`"):
        run({"m": "http://127.0.0.1:9/v1"}, ["maths"], out=tmp_path)
    with pytest.raises(ConfigError, match="no file"):
        run(
            {"m": "http://127.0.0.1:9/v1"},
            ["math"],
            out=tmp_path,
            options=Options(data={"gsm8k": str(tmp_path / "x")}),
        )


def test_broken_unicode_from_a_model_reaches_the_disk(tmp_path):
    broken = Reply(raw=rb'{"choices": [{"message": {"content": "\\boxed{\ud800\u0000}"}}]}')
    report, _ = evaluate(tmp_path, by_question(GOLD | {"Half": broken}))
    assert cell(report).score.mean == pytest.approx(200 / 3)
    assert "\\ud800" in (tmp_path / "out" / "outcomes.jsonl").read_text()


def test_a_full_disk_is_named(tmp_path):
    with Store(tmp_path / "s") as store:
        store._db.execute("PRAGMA max_page_count = 3")
        with pytest.raises(OutputError, match="cannot be stored: database or disk is full"):
            store.put("k", "m", Prompt((("user", "x"),)), Answer("y" * 100_000))


def test_a_file_that_is_no_store_is_named(tmp_path):
    (tmp_path / "s").write_text("something else" * 100)
    with pytest.raises(CorruptInputError, match="is not a store of answers"):
        Store(tmp_path / "s")


def test_two_runs_do_not_share_a_store(tmp_path):
    with Store(tmp_path / "s"), pytest.raises(OutputBusyError):
        Store(tmp_path / "s")
    with Store(tmp_path / "s"):
        pass


class Flaky:
    identity = "flaky"

    def __init__(self, failures):
        self.failures, self.calls, self.now, self.busiest = failures, 0, 0, 0

    async def complete(self, prompt):
        self.calls += 1
        self.now += 1
        self.busiest = max(self.busiest, self.now)
        await asyncio.sleep(0.001)
        self.now -= 1
        if self.calls <= self.failures:
            raise RetryableError("no")
        return Answer("yes")

    async def close(self):
        pass


def test_equal_prompts_make_one_request_and_the_bound_holds(tmp_path):
    async def go(store):
        backend = Flaky(0)
        asker = Asker(backend, store, Pace(concurrency=4))
        prompts = [Prompt((("user", str(i % 20)),)) for i in range(60)]
        await asyncio.gather(*map(asker.ask, prompts))
        return backend

    with Store(tmp_path / "s") as store:
        backend = asyncio.run(go(store))
    assert (backend.calls, backend.busiest) == (20, 4)


def test_every_part_of_a_request_is_part_of_its_key():
    first = Prompt((("user", "a"),))
    changed = {
        "messages": (("user", "b"),), "text": "a", "sample": 1, "tools": "[]",
        "temperature": 0.5, "top_p": 0.5, "top_k": 5, "min_p": 0.1, "max_tokens": 5, "stop": ("x",),
    }  # fmt: skip
    names = {f.name for f in fields(Prompt) + fields(Sampling)} - {"sampling"}
    assert changed.keys() == names
    others = [
        replace(first, **{name: value})
        if hasattr(first, name)
        else replace(first, sampling=replace(first.sampling, **{name: value}))
        for name, value in changed.items()
    ]
    assert len({p.key("m") for p in [first, *others]} | {first.key("n")}) == len(changed) + 2
    assert len({p.seed for p in [first, *others]}) == len(changed) + 1
    assert first.key("m") == Prompt((("user", "a"),)).key("m")


def test_attempts_are_bounded(tmp_path):
    with Store(tmp_path / "s") as store:
        backend = Flaky(99)
        asker = Asker(backend, store, Pace(concurrency=1, attempts=3, first_wait_s=0.0))
        with pytest.raises(UnansweredError, match="3 attempts"):
            asyncio.run(asker.ask(Prompt((("user", "x"),))))
        assert backend.calls == 3


def start_server(tmp_path, delay):
    log = tmp_path / "asked.log"
    server = subprocess.Popen(
        [sys.executable, HERE / "evaluate.py", str(delay), log],
        stdout=subprocess.PIPE,
        text=True,
    )
    return server, f"http://127.0.0.1:{server.stdout.readline().strip()}/v1", log


RUN = """
import sys
from ramerge.evaluate.asking import Pace
from ramerge.evaluate.records import Options
from ramerge.evaluate.runner import run
if __name__ == "__main__":
    run({"m": sys.argv[1]}, ["math"], out=sys.argv[2], options=Options(data={"gsm8k": sys.argv[3]}), pace=Pace(concurrency=8))
"""


def test_kill_9_and_restart_repeats_no_stored_request_and_gives_the_same_report(tmp_path):
    rows = [{"question": f"number {i}?", "answer": f"#### {7 if i % 3 else 8}"} for i in range(120)]
    data = write_rows(tmp_path / "gsm8k.jsonl", rows)
    (tmp_path / "run.py").write_text(RUN)
    server, url, log = start_server(tmp_path, 0.05)
    try:

        def start(out):
            return subprocess.Popen(
                [sys.executable, tmp_path / "run.py", url, tmp_path / out, data]
            )

        first = start("out")
        while not log.exists() or len(log.read_text().splitlines()) < 40:
            assert first.poll() is None
            time.sleep(0.01)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        with sqlite3.connect(tmp_path / "out" / "answers.sqlite") as db:
            stored = [
                json.loads(row[0])["messages"][-1][1]
                for row in db.execute("SELECT prompt FROM answers")
            ]
        before = [json.loads(line) for line in log.read_text().splitlines()]
        assert start("out").wait() == 0
        after = [json.loads(line) for line in log.read_text().splitlines()][len(before) :]
        assert 20 < len(stored) < 120
        assert not set(stored) & set(after)  # nothing that was answered is asked again
        assert len(before) - len(stored) <= 8  # at most what was under way is
        assert start("whole").wait() == 0
        for name in ("report.json", "report.md", "report.html", "outcomes.jsonl"):
            assert (tmp_path / "out" / name).read_bytes() == (
                tmp_path / "whole" / name
            ).read_bytes()
    finally:
        server.kill()


@pytest.mark.slow
def test_a_thousand_requests_take_at_most_three_times_the_ideal(tmp_path):
    data = write_rows(
        tmp_path / "g.jsonl",
        [{"question": f"number {i}?", "answer": "#### 7"} for i in range(1000)],
    )
    server, url, _ = start_server(tmp_path, 0.05)
    try:
        started = time.monotonic()
        report = run(
            {"m": url},
            ["math"],
            out=tmp_path / "out",
            options=Options(data={"gsm8k": data}),
        )
        seconds = time.monotonic() - started
    finally:
        server.kill()
    assert cell(report).score.mean == 100.0
    assert seconds < 3 * 1000 * 0.05 / 64, seconds
