"""`ramerge evaluate` and `compare` as a user meets them: output, exit codes, secrets."""

import json
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("math_verify")

from helpers.cli import ramerge
from helpers.evaluate import Reply, by_question, serving, write_rows

ROWS = [
    {"question": "How many legs have 3 cats?", "answer": "#### 12"},
    {"question": "Half of 8?", "answer": "#### 4"},
]
GOLD = by_question({"cats": "\\boxed{12}", "Half": "\\boxed{4}"})


@pytest.fixture
def math(tmp_path):
    data = write_rows(tmp_path / "q.jsonl", ROWS)
    return ["--suite", "math", "--data", f"gsm8k={data}", "--out", tmp_path / "out"]


def test_a_run_prints_a_table_and_writes_four_files(math, tmp_path):
    with serving(GOLD) as (url, _):
        done = ramerge("evaluate", "-m", f"base={url}", "-m", f"merged={url}", *math)
    assert done.returncode == 0, done.stderr
    assert "GSM8K       2      100.0 [34.2, 100.0]" in done.stdout
    assert "minus base" in done.stdout
    assert "base: 2 tasks, at most 2 requests and 8,192 new tokens; 0 answers stored" in done.stderr
    files = {"report.json", "report.md", "report.html", "outcomes.jsonl"}
    assert files <= {path.name for path in (tmp_path / "out").iterdir()}


def test_json_is_one_object_and_quiet_is_quiet(math):
    with serving(GOLD) as (url, _):
        done = ramerge("evaluate", "-m", f"m={url}", *math, "--json", "--quiet")
    assert json.loads(done.stdout)["cells"][0]["score"]["mean"] == 100.0
    assert done.stderr == ""


def test_a_dry_run_asks_nothing(math, tmp_path):
    with serving(GOLD) as (url, server):
        done = ramerge("evaluate", "-m", f"m={url}", *math, "--dry-run")
        assert (done.returncode, done.stdout, server.bodies) == (0, "", [])
    assert "at most 2 requests" in done.stderr
    assert not (tmp_path / "out" / "report.json").exists()


def test_tasks_without_an_answer_end_in_12_and_the_next_run_asks_only_for_them(math, tmp_path):
    broken = by_question({"cats": "\\boxed{12}", "Half": Reply(status=400, raw=b"too long")})
    with serving(broken) as (url, server):
        done = ramerge("evaluate", "-m", f"m={url}", *math)
        assert done.returncode == 12
        assert "1 errors" in done.stdout
        assert "hint: run the same command again" in done.stderr
        server.script = GOLD
        assert ramerge("evaluate", "-m", f"m={url}", *math).returncode == 0
        assert len(server.bodies) == 3


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["-m", "m=http://127.0.0.1:9/v1", "--suite", "math"], 9, "no OpenAI-compatible endpoint"),
        (["-m", "m=no/such/place", "--suite", "math"], 2, "neither an http address nor a directory"),
        (["-m", "m=http://u:secret@h/v1", "--suite", "math"], 2, "neither a password nor a query"),
        (["-m", "\x1b[31mm=x", "--suite", "math"], 2, "`\\x1b[31mm` is no name"),
        (["-m", "m", "--suite", "math"], 2, "not NAME=VALUE"),
        (["-m", "m=x", "--suite", "maths"], 2, "did you mean `math`?"),
        (["-m", "m=x", "--suite", "tool", "--tool-format", "xml"], 2, "none of prompt"),
        (["-m", "m=x", "--suite", "memory", "--hotpot-docs", "0"], 2, "below 1"),
    ],
)  # fmt: skip
def test_what_is_refused_is_refused_by_name(tmp_path, arguments, code, text):
    data = write_rows(tmp_path / "q.jsonl", ROWS)
    done = ramerge("evaluate", *arguments, "--data", f"gsm8k={data}", "--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == (code, "")
    assert text in done.stderr
    assert "secret" not in done.stderr


def test_without_a_sandbox_no_code_is_run_and_nothing_is_asked(tmp_path):
    row = {"task_id": "1", "question": "q", "test_input": ["1"], "test_output": ["1"]}
    data = write_rows(tmp_path / "q.jsonl", [row])
    with serving(GOLD) as (url, server):
        done = ramerge(
            "evaluate", "-m", f"m={url}", "--suite", "coding", "--data", f"livebench={data}",
            "--out", tmp_path / "out", PATH=str(tmp_path),
        )  # fmt: skip
        assert server.bodies == []
    assert done.returncode == 11
    assert "apt-get install bubblewrap" in done.stderr


def test_compare_reads_runs_back(math, tmp_path):
    with serving(GOLD) as (url, _):
        ramerge("evaluate", "-m", f"m={url}", *math)
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    runs = [tmp_path / "out", tmp_path / "copy"]
    done = ramerge("compare", *runs, "--out", tmp_path / "both")
    assert done.returncode == 0
    assert "m (copy)" in done.stdout
    assert (tmp_path / "both" / "report.html").is_file()
    assert json.loads(ramerge("compare", *runs, "--json").stdout)["models"] == ["m", "m (copy)"]
    assert ramerge("compare", tmp_path).returncode == 2


def test_the_key_is_sent_and_nowhere_kept(math, tmp_path):
    key = "sk-thesecretofthistest"

    def telltale(body):
        if "cats" in body["messages"][-1]["content"]:
            return Reply(status=400, raw=f"your key {key} is fine, your prompt is not".encode())
        return GOLD(body)

    with serving(telltale) as (url, server):
        done = ramerge("evaluate", "-m", f"m={url}", *math, "--debug", OPENAI_API_KEY=key)
    assert done.returncode == 12
    assert {h[b"authorization"] for h in server.headers} == {f"Bearer {key}".encode()}
    kept = b"".join(path.read_bytes() for path in (tmp_path / "out").iterdir())
    assert b"*** is fine" in kept
    assert key.encode() not in kept + done.stdout.encode() + done.stderr.encode()


def test_the_program_starts_without_loading_any_of_it():
    code = "import sys, ramerge.cli.app; print([m for m in sys.modules if 'evaluate' in m or m == 'aiohttp'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
