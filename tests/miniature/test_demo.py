"""The shipped demo: the files are the ones described, and the agents really learned their tasks."""

import hashlib
import json
from importlib.resources import files
from pathlib import Path

import pytest

DEMO = Path(str(files("ramerge"))) / "miniature" / "data" / "demo"
PROVENANCE = json.loads((DEMO / "provenance.json").read_text("utf-8"))
OWN = {"coder": "coding", "tools": "tools", "memory": "memory"}


def test_files_are_those_of_the_provenance_and_small():
    for name, digest in PROVENANCE["sha256"].items():
        assert hashlib.sha256((DEMO / name).read_bytes()).hexdigest() == digest
    on_disk = {p.relative_to(DEMO).as_posix() for p in DEMO.rglob("*") if p.is_file()}
    assert on_disk == set(PROVENANCE["sha256"]) | {"provenance.json"}
    assert sum(p.stat().st_size for p in DEMO.rglob("*")) < 2_000_000


@pytest.mark.parametrize("agent", OWN)
def test_agents_score_what_the_provenance_says(agent):
    pytest.importorskip("torch")
    from ramerge.lab.agents import accuracies
    from ramerge.lab.model import load

    base = accuracies(load(DEMO / "base"), "test")
    found = accuracies(load(DEMO / agent), "test")
    # Other machines round differently, which may flip a sampled character here and there.
    assert found == pytest.approx(PROVENANCE["test_accuracy"][agent], abs=0.02)
    assert found[OWN[agent]] - base[OWN[agent]] >= 0.20


def test_transformers_answers_with_the_demo_agent():
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO / "coder")
    model = transformers.AutoModelForCausalLM.from_pretrained(DEMO / "coder").eval()
    encoded = tokenizer("C|+3*2-4|", return_tensors="pt")
    encoded.pop("token_type_ids", None)
    answer = model.generate(**encoded, max_new_tokens=15, do_sample=False)
    text = tokenizer.decode(answer[0, encoded.input_ids.shape[1] :], skip_special_tokens=True)
    assert text == "((x+3)*2)-4"
