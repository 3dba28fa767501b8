"""Weights in this process: the right prompt, draws that do not depend on the batch, and the lab's agents by the same commands."""

import asyncio
import json
import shutil
from importlib.resources import files
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from ramerge._errors import ConfigError
from ramerge.evaluate.local import LocalModel, fingerprint
from ramerge.evaluate.records import Options, Prompt, Sampling, UnansweredError
from ramerge.evaluate.runner import run

DEMO = Path(str(files("ramerge"))) / "miniature" / "data" / "demo"
TEMPLATE = "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"


def answers(model, prompts):
    async def together():
        return await asyncio.gather(*map(model.complete, prompts))

    return asyncio.run(together())


def prompt(text, **sampling):
    return Prompt((("user", text),), Sampling(**{"max_tokens": 12, **sampling}))


@pytest.fixture(scope="module")
def coder():
    return LocalModel(DEMO / "coder")


def test_greedy_is_transformers_own_greedy(coder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    text = "C|+3*2-4|"
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "coder")
    model = AutoModelForCausalLM.from_pretrained(DEMO / "coder", dtype="auto")
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    out = model.generate(ids, do_sample=False, max_new_tokens=15)
    expected = tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
    (found,) = answers(coder, [prompt(text, max_tokens=15)])
    assert (found.text, found.finish) == (expected, "stop")
    assert found.prompt_tokens == ids.shape[1]
    assert eval(found.text.replace("x", "5")) == (5 + 3) * 2 - 4


def test_a_draw_does_not_depend_on_its_neighbours(coder):
    mixed = [prompt(f"C|+{n}*2-4|", temperature=1.0, top_p=0.95, top_k=10) for n in range(2, 9)]
    together = [a.text for a in answers(coder, mixed)]
    alone = [answers(coder, [p])[0].text for p in mixed]
    assert together == alone
    assert len(set(together)) == len(together)


def test_samples_of_one_prompt_differ_and_follow_the_softmax(coder):
    many = [
        Prompt((("user", "M|b|3|a5d1|"),), Sampling(temperature=3.0, max_tokens=1), sample=n)
        for n in range(600)
    ]
    drawn = [a.text for a in answers(coder, many)]
    ids = coder._tokenizer("M|b|3|a5d1|", return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        chances = (coder._model(ids).logits[0, -1].float() / 3.0).softmax(-1)
    for token in chances.topk(3).indices.tolist():
        text = coder._tokenizer.decode([token], skip_special_tokens=True)
        if text:
            p = float(chances[token])
            assert abs(drawn.count(text) / 600 - p) < 4 * (p * (1 - p) / 600) ** 0.5


def test_stop_strings_and_the_budget_end_an_answer(coder):
    free, stopped, cut = (
        answers(coder, [p])[0]
        for p in (
            prompt("T|get a7;put c5|", max_tokens=27),
            prompt("T|get a7;put c5|", max_tokens=27, stop=(";",)),
            prompt("T|get a7;put c5|", max_tokens=2),
        )
    )
    assert ";" in free.text
    assert (stopped.text, stopped.finish) == (free.text.split(";")[0], "stop")
    assert (cut.finish, cut.new_tokens) == ("length", 2)


def test_a_prompt_that_does_not_fit_is_an_error_and_a_budget_that_does_not_is_cut(coder):
    with pytest.raises(UnansweredError, match="the model takes 256"):
        answers(coder, [prompt("x" * 300)])
    (found,) = answers(coder, [prompt("x" * 250, max_tokens=4096)])
    assert found.new_tokens <= 256 - 250


def test_the_chat_template_writes_the_prompt_tools_included(tmp_path):
    shutil.copytree(DEMO / "tools", tmp_path / "m")
    (tmp_path / "m" / "chat_template.jinja").write_text(TEMPLATE)
    model = LocalModel(tmp_path / "m")
    tools = json.dumps([{"type": "function", "function": {"name": "get"}}])
    asked = Prompt((("user", "a7"), ("user", "|")), Sampling(max_tokens=1), tools=tools)
    assert model._render(asked) == "get;a7|"
    assert answers(model, [asked])[0].prompt_tokens == len("get;a7|")  # no second first token


def test_raw_text_is_read_as_it_stands(tmp_path):
    shutil.copytree(DEMO / "coder", tmp_path / "m")
    (tmp_path / "m" / "chat_template.jinja").write_text("templated: " + TEMPLATE)
    model = LocalModel(tmp_path / "m")
    how = Sampling(max_tokens=9)
    raw, chat = Prompt(text="C|+3*2-4|", sampling=how), Prompt((("user", "C|+3*2-4|"),), how)
    assert model._render(raw) == "C|+3*2-4|"
    together = answers(model, [raw, chat, raw])
    assert together[0].text == answers(LocalModel(DEMO / "coder"), [chat])[0].text
    assert together[0].text == together[2].text != together[1].text


def test_other_weights_are_another_model(tmp_path):
    shutil.copytree(DEMO / "base", tmp_path / "m")
    before = fingerprint(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").touch()
    assert fingerprint(tmp_path / "m") != before


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not load as a language model"):
        LocalModel(tmp_path)


def test_the_lab_s_agents_run_through_the_same_command(tmp_path):
    models = {name: str(DEMO / name) for name in ("base", "coder", "memory")}
    report = run(models, ["lab"], out=tmp_path, options=Options(limit=32))
    scores = {
        m: {c: cell.score.mean for (c, _), cell in row.items()} for m, row in report.cells.items()
    }
    assert report.errors == 0
    assert scores["coder"]["miniature coding"] > 85 > 65 > scores["base"]["miniature coding"]
    assert scores["memory"]["miniature memory"] > 85 > scores["coder"]["miniature memory"]
    assert report.differences["coder"]["miniature coding", "accuracy"].low > 0
    steps = []
    again = run(models, ["lab"], out=tmp_path, options=Options(limit=32), progress=steps.append)
    assert again.as_json() == report.as_json()
    assert {step.asked for step in steps} == {0}
