"""Gold answers to rows of the real data sets, where a directory of them is given: 100 %, but for what nobody can answer."""

import os
from pathlib import Path

import pytest

pytest.importorskip("aiohttp")

from helpers.evaluate import Reply, evaluate, question, scores
from helpers.ifeval import following
from helpers.sandbox import missing
from ramerge.evaluate import rows
from ramerge.evaluate.suites import mathematics

SAMPLES = os.environ.get("RAMERGE_EVAL_DATA")
FILES = {
    "gsm8k": ("math", "gsm8k_test_200.jsonl"),
    "math500": ("math", "math_test_200.jsonl"),
    "nq": ("search", "nq_open_dev_200.jsonl"),
    "squad": ("memory", "xquad_en_400.jsonl"),
    "hotpot": ("memory", "hotpot_dev_200.jsonl"),
    "mbpp": ("coding", "mbpp_test_100.jsonl"),
    "ifeval": ("ifeval", "ifeval_200.jsonl"),
}
PASSAGES = "wiki2_corpus_600.jsonl"
pytestmark = pytest.mark.skipif(
    not SAMPLES, reason="RAMERGE_EVAL_DATA names no directory of sample rows"
)


def real(name):
    table = rows.read(Path(SAMPLES) / FILES[name][1], None)
    if name == "hotpot":  # the sample has no documents
        return [{**row, "documents": [f"{row['question']} {row['answer']}"]} for row in table]
    return table


def gold(name, row, body):
    """The gold answer to a request about ``row``."""
    if name in {"gsm8k", "math500"}:
        return f"\\boxed{{{mathematics.gold(row)}}}"
    if name == "mbpp":
        program = row["test"][0] if "new test" in question(body) else row["code"]
        return f"```python\n{program}\n```"
    if name == "nq":  # looks first
        searched = len(body["messages"]) > 1
        return f"<answer>{row['answer'][0]}</answer>" if searched else "<search>it</search>"
    if name == "ifeval":
        return following(row)
    return f"the answer is {row['answers'][0] if name == 'squad' else row['answer']}"


@pytest.mark.parametrize("right", [True, False], ids=["gold", "wrong"])
@pytest.mark.parametrize("name", FILES)
def test_rows_of_the_real_data_sets(tmp_path, name, right):
    suite = FILES[name][0]
    if suite == "coding" and missing():
        pytest.skip(missing())
    table = real(name)
    asked = [(str(r.get("question") or r.get("problem") or r["prompt"]), r) for r in table]
    asked.sort(key=lambda pair: -len(pair[0]))  # one question may be part of another

    def script(body):
        if not right:
            return Reply(WRONG.get(suite, "the answer is <answer>xyzzy</answer>"))
        text = body["messages"][0 if suite == "search" else -1]["content"]
        return Reply(gold(name, next(row for part, row in asked if part in text), body))

    extra = {"search": "corpus", "memory": "distractors"}.get(suite)
    data = {name: table} | ({extra: str(Path(SAMPLES) / PASSAGES)} if extra else {})
    found, _ = evaluate(
        tmp_path, suite, script, data, samples=1, hotpot_docs=(50,), squad_tokens=(8192,)
    )
    outcomes = rows.read(tmp_path / "out" / "outcomes.jsonl", None)
    first = {o["item"]: next(iter(o["score"]["metrics"].values()))[0] for o in outcomes}
    if not right:
        found.pop(("MBPP", "generated tests"), None)  # there is none
        assert set(scores(found).values()) == {0.0}
        return
    assert [item for item, hit in first.items() if not hit] == IMPOSSIBLE.get(name, [])
    if name not in IMPOSSIBLE:
        assert set(scores(found).values()) == {100.0}


IMPOSSIBLE = {"ifeval": ["1627"]}  # repeat a prompt that has a comma, without commas
WRONG = {"math": "\\boxed{-77}", "coding": "```python\npass\n```", "ifeval": ""}
