"""Every finding has a code, a severity, evidence and a way out; `merge` warns of the same as `doctor` does."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import ramerge
from helpers.models import read_tensors, save_agent, save_base, write_tensors
from ramerge.report.health import HINTS

ROOT = Path(__file__).parents[2]
WORDS = [f"t{i}" for i in range(150)]  # of 160 rows: ten are padding


def tokenizer(words, merges):
    model = {"type": "BPE", "vocab": {w: i for i, w in enumerate(words)}, "merges": merges}
    return json.dumps({"version": "1.0", "added_tokens": [], "model": model})


@pytest.fixture
def models(tmp_path):
    base = save_base(tmp_path / "base")
    (base / "tokenizer.json").write_text(tokenizer(WORDS, ["t1 t2", "t3 t4"]))
    (base / "tokenizer_config.json").write_text(json.dumps({"eos_token": "t5"}))
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": 5}))
    (base / "config.json").write_text(
        json.dumps(json.loads((base / "config.json").read_text()) | {"eos_token_id": 5})
    )
    (base / "chat_template.jinja").write_text("hello\n{{ a }}\nbye\n")
    agent = save_agent(tmp_path / "coder", base, seed=1, density=0.2)
    shutil.copy(base / "chat_template.jinja", agent)
    return base, agent


def found(models):
    findings = ramerge.doctor(base=models[0], agents={"coder": models[1]})
    assert all(f.hint for f in findings if f.severity != "ok")
    return {f.code: f for f in findings}


def merge_warnings(models, out):
    return ramerge.merge(
        base=models[0], agents={"coder": models[1]}, method="ram", out=out
    ).warnings


def test_padded_rows_are_counted_and_do_not_hide_that_all_is_well(models):
    findings = found(models)
    assert findings["derived"].severity == "ok"
    assert findings["padded-rows"].severity == "note"
    changed = read_tensors(models[1])["model.embed_tokens.weight"][150:]
    base = read_tensors(models[0])["model.embed_tokens.weight"][150:]
    moved = int((changed != base).any(axis=1).sum())
    assert moved > 0
    expected = f"10 rows beyond the last token, 149; {moved} of them changed"
    assert expected in findings["padded-rows"].evidence


def test_padded_rows_that_stayed(models):
    tensors, base = (read_tensors(m) for m in (models[1], models[0]))
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name][150:] = base[name][150:]
    write_tensors(models[1], tensors)
    assert found(models)["padded-rows"].evidence.endswith("none changed")


def test_the_first_differing_merge(models, tmp_path):
    (models[1] / "tokenizer.json").write_text(tokenizer(WORDS, ["t1 t2", "t3 t6"]))
    finding = found(models)["merges-differ"]
    assert finding.severity == "warning" and finding.evidence.endswith(
        "merge 1 is `t3 t6`, not `t3 t4`"
    )
    assert finding.evidence in merge_warnings(models, tmp_path / "out")


def test_tokens_that_one_of_them_lacks(models, tmp_path):
    (models[1] / "tokenizer.json").write_text(tokenizer([*WORDS[:-2], "new"], ["t1 t2", "t3 t4"]))
    problem = found(models)
    assert "`new` (148)" in problem["tokens-added"].evidence
    assert (
        "lacks 2 tokens of the base: `t148` (148), `t149` (149)"
        in problem["tokens-missing"].evidence
    )


def test_tokens_under_other_ids_are_an_error_with_the_first_five(models):
    (models[1] / "tokenizer.json").write_text(tokenizer([*WORDS[:-2], "t149", "t148"], []))
    finding = found(models)["incompatible"]
    assert finding.severity == "error" and "`t148` is 149 not 148" in finding.evidence


def test_the_first_differing_line_of_the_chat_template(models, tmp_path):
    (models[1] / "chat_template.jinja").write_text("hello\n{{ b }}\nbye\n")
    finding = found(models)["chat-template"]
    assert finding.evidence.endswith("line 2 is `{{ b }}\\n`, not `{{ a }}\\n`")
    assert finding.evidence in merge_warnings(models, tmp_path / "out")


def test_an_end_of_sequence_that_the_tokenizer_does_not_know(models, tmp_path):
    (models[1] / "generation_config.json").write_text(json.dumps({"eos_token_id": 9}))
    findings = ramerge.doctor(base=models[0], agents={"coder": models[1]})
    special = [f.evidence for f in findings if f.code == "special-tokens"]
    assert any(s.startswith("agent `coder` gives different ids for `eos_token`") for s in special)
    assert set(special) <= set(merge_warnings(models, tmp_path / "out"))


def test_an_adapter_that_is_not_read_is_said_by_merge_too(models, tmp_path):
    (models[1] / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    assert found(models)["adapter-beside"].evidence in merge_warnings(models, tmp_path / "out")


def test_a_wider_agent(models):
    write_tensors(models[1], {n: t.astype(np.float32) for n, t in read_tensors(models[1]).items()})
    findings = found(models)
    assert findings["other-dtype"].severity == "warning" and findings["derived"].severity == "ok"


def test_errors_on_opening_name_the_model(models):
    (models[1] / "model.safetensors").write_bytes(b"\x10")
    (finding,) = ramerge.doctor(base=models[0], agents={"coder": models[1]})
    assert finding.evidence.startswith("agent `coder`") and str(models[1]) in finding.evidence
    with pytest.raises(ramerge.MergeError, match=r"^agent `coder`.*model\.safetensors"):
        ramerge.plan(base=models[0], agents={"coder": models[1]})
    (models[0] / "model.safetensors").write_bytes(b"\x10")
    for ask in (ramerge.plan, ramerge.doctor):
        with pytest.raises(ramerge.MergeError, match="the base"):
            ask(base=models[0], agents={"coder": models[1]})


def test_one_lambda_for_all_is_a_decision(models, tmp_path):
    other = save_agent(tmp_path / "tools", models[0], seed=2, density=0.9)
    twin = save_agent(tmp_path / "twin", models[0], seed=3, density=0.9)
    report = ramerge.merge(base=models[0], agents={"a": other, "b": twin}, out=tmp_path / "out")
    assert any("every ρ reaches alpha" in text for text in report.decisions)
    assert not any("every ρ" in text for text in report.warnings)


def test_every_notice_that_a_plan_can_give_has_a_hint():
    rooms = (ROOT / "src" / "ramerge" / room for room in ("planning", "fit", "models"))
    sources = "".join(f.read_text() for room in rooms for f in room.rglob("*.py"))
    codes = set(re.findall(r'(?:Notice|say)\(\s*"([a-z-]+)"', sources))
    assert len(codes) > 12 and sorted(codes - set(HINTS)) == []
