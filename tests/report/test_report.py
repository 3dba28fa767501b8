"""The probe against plain numpy, its JSON against the schema, its page against hostile names and a real browser."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import ramerge
from helpers.models import read_tensors, save_agent, save_base, write_tensors
from helpers.vectors import CASES
from helpers.vectors import models as vector_models
from ramerge.report.health import HINTS
from ramerge.report.html import page

AGENTS = {"coder": 0.05, "tools": 0.45, "memory": 0.55}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    base = save_base(root / "base")
    agents = {
        n: save_agent(root / n, base, seed=i, density=d) for i, (n, d) in enumerate(AGENTS.items())
    }
    return base, agents


@pytest.fixture(scope="module")
def report(models):
    return ramerge.probe(base=models[0], agents=models[1])


def flat(models):
    base, agents = models
    names = sorted(read_tensors(base))

    def joined(d):
        tensors = read_tensors(d)
        return np.concatenate([tensors[n].astype(np.float64).reshape(-1) for n in names])

    return joined(base), [joined(a) for a in agents.values()]


def test_every_figure_equals_the_oracle(models, report):
    x, thetas = flat(models)
    taus = [t - x for t in thetas]
    masks = [np.abs(t.astype(np.float32)) > np.float32(1e-5) for t in taus]
    c = np.sum(masks, axis=0)
    data = report.to_json()
    assert data["elements"] == x.size and data["unchanged"] == int((c == 0).sum())
    for t, agent in enumerate(data["agents"]):
        m, tau = masks[t], taus[t]
        assert agent["changed"] == int(m.sum())
        assert agent["unique"] == int((m & (c == 1)).sum())
        assert agent["shared"] == int((m & (c > 1)).sum())
        assert agent["overlap_with"] == [int((m & (c == k + 1)).sum()) for k in range(3)]
        assert math.isclose(agent["rho"], agent["shared"] / agent["unique"])
        assert math.isclose(agent["lambda"], 1 + 0.1 * min(agent["rho"], 1.0))
        assert math.isclose(agent["norm"], np.linalg.norm(tau), rel_tol=1e-12)
        assert math.isclose(
            agent["relative_norm"], np.linalg.norm(tau) / np.linalg.norm(x), rel_tol=1e-12
        )
        assert agent["largest"] == np.abs(tau).max()
        assert agent["density_by_mask"]["exact"] == np.count_nonzero(tau) / x.size
        opposed = np.zeros(x.size, bool)
        for u in range(3):
            if u != t:
                opposed |= m & masks[u] & (np.sign(tau) != np.sign(taus[u]))
        assert math.isclose(agent["sign_conflict"], opposed.sum() / agent["shared"])
        for u, name in enumerate(AGENTS):
            if u != t:
                cosine = tau @ taus[u] / np.linalg.norm(tau) / np.linalg.norm(taus[u])
                assert math.isclose(agent["cosine_to"][name], cosine, rel_tol=1e-9, abs_tol=1e-12)
        exponents = np.floor(np.log2(np.abs(tau[m].astype(np.float32)).astype(np.float64))).astype(
            int
        )
        counted = dict(zip(*np.unique(exponents, return_counts=True), strict=True))
        assert {b["exponent"]: b["elements"] for b in agent["magnitudes"]} == counted
        assert agent["lost_to_rounding"] == 0
    for pair in data["pairs"]:
        a, b = (list(AGENTS).index(pair[k]) for k in "ab")
        both = masks[a] & masks[b]
        assert pair["both"] == int(both.sum())
        assert math.isclose(pair["expected_by_chance"], masks[a].sum() * masks[b].sum() / x.size)
        assert math.isclose(
            pair["sign_conflict"], (np.sign(taus[a]) != np.sign(taus[b]))[both].mean()
        )
    assert sum(i["elements"] for i in data["intersections"]) + data["unchanged"] == x.size


def test_elements_that_a_cast_would_lose(models, tmp_path):
    base = {n: t.astype(np.float32) for n, t in read_tensors(models[0]).items()}
    agent = {
        n: np.where(np.arange(t.size).reshape(t.shape) % 2 == 0, t + np.float32(2e-5), t)
        for n, t in base.items()
    }
    paths = [write_tensors(tmp_path / k, v) for k, v in (("b", base), ("a", agent))]
    report = ramerge.probe(base=paths[0], agents={"a": paths[1]}, out_dtype="bfloat16")
    import ml_dtypes

    lost = sum(
        int(
            (
                (agent[n].astype(ml_dtypes.bfloat16) == t.astype(ml_dtypes.bfloat16))
                & (np.abs(agent[n] - t) > np.float32(1e-5))
            ).sum()
        )
        for n, t in base.items()
    )
    assert report.data["agents"][0]["lost_to_rounding"] == lost > 0


@pytest.mark.parametrize("case", CASES)
def test_counts_are_the_authors(case, tmp_path):
    base, agents = vector_models(case)
    paths = {f"a{i}": write_tensors(tmp_path / f"a{i}", a) for i, a in enumerate(agents)}
    data = ramerge.probe(base=write_tensors(tmp_path / "base", base), agents=paths).data
    for ours, theirs in zip(data["agents"], CASES[case]["counts"], strict=True):
        assert (
            ours["changed"] == theirs["changed"]
            and ours["overlap_with"] == theirs["overlap_with_k_others"]
        )
    assert data["elements"] == CASES[case]["counts"][0]["elements"]


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads_and_chunks_change_no_digit(models, report, threads):
    again = ramerge.probe(base=models[0], agents=models[1], threads=threads, memory="200KB")
    assert json.dumps(again.data) == json.dumps(report.data)


def test_json_is_what_the_schema_says(report):
    fastjsonschema = pytest.importorskip("fastjsonschema")
    schema = json.loads(
        (Path(__file__).parents[2] / "docs" / "reference" / "probe.schema.json").read_text()
    )
    fastjsonschema.compile(schema)(json.loads(json.dumps(report.to_json())))


def test_dataframe_and_figures(report):
    frame = report.to_dataframe()
    assert {"layer", "module", "name", "density"} <= set(frame.columns) and len(frame) == 3 * len(
        report.data["layers"]
    )
    for name in ("density", "overlap", "magnitude", "cosine", "conflict", "chance"):
        assert report.figure(name).data
    with pytest.raises(ramerge.MergeError, match="there is no figure `densty`"):
        report.figure("densty")


def test_dilution_projects_merges_on_task_vectors(models):
    report = ramerge.probe(
        base=models[0], agents=models[1], against=("task_arithmetic", "linear", "ram")
    )
    by_method = {row["method"]: row["agents"] for row in report.data["dilution"]}
    for agent in by_method["ram"]:
        assert math.isclose(agent["unique"]["projection"], 1.0, abs_tol=1e-12)
    for agent in by_method["linear"]:  # a third of each agent's own change is left of it
        assert 0.2 < agent["unique"]["projection"] < 0.45


# fmt: off
INJECTIONS = [
    "<script>alert(1)</script>", "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\"><svg onload=alert(1)>",
    "' onmouseover='alert(1)", "javascript:alert(1)", "{{7*7}}", "{% raw %}", "${7*7}", "<!--", "-->", "]]>", "&lt;b&gt;", "<b>bold</b>",
    "</title><script>1</script>", "</style><script>1</script>", "\u202eevil", "\u2028x", "a\u0000b", "`x`", "\\u003cscript>", "<iframe src=//e>",
    "<link rel=stylesheet href=//e>", "<base href=//e>", "</svg><script>alert(1)</script>",
]
# fmt: on


@pytest.mark.parametrize("name", INJECTIONS)
def test_hostile_names_stay_text(report, name):
    data = json.loads(json.dumps(report.data).replace('"coder"', json.dumps(name)))
    data["warnings"] = [f"about {name}"]
    data["base"]["source"] = name
    html = page(data)
    assert html.count("<script") == 2 and html.count("</script>") == 2
    assert html.count("<style") == 1 and html.count("<iframe") == 0 and html.count("<img") == 0
    assert "onerror=alert" not in re.sub(r"&[a-z#0-9]+;", "", html) or "<img" not in html
    embedded = html.split('id="data">')[1].split("</script>")[0]
    assert json.loads(embedded)["agents"][0]["name"] == name


def test_the_page_loads_nothing(report):
    html = report.to_html()
    assert "default-src 'none'" in html
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", html)


@pytest.mark.browser
def test_in_a_browser_charts_stand_and_sliders_move_lambda(report, browser, tmp_path):
    (tmp_path / "report.html").write_text(report.to_html(), encoding="utf-8")
    browser.call("POST", "/url", {"url": (tmp_path / "report.html").as_uri()})
    assert browser.script("return document.querySelectorAll('svg rect').length") > 30
    assert browser.script("return document.querySelectorAll('svg circle').length") > 5
    before = browser.script("return [...document.querySelectorAll('.lam')].map(c => c.textContent)")
    browser.script(
        "const r = document.getElementById('r'); r.value = 0.5; r.dispatchEvent(new Event('input'));"
    )
    after = browser.script("return [...document.querySelectorAll('.lam')].map(c => c.textContent)")
    expected = [1 + 0.5 * min(a["rho"], 1.0) for a in report.data["agents"]]
    assert [float(v) for v in after] == pytest.approx(expected, rel=1e-3) and before != after
    browser.call("POST", "/window/rect", {"width": 500, "height": 900})
    sideways = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.script(sideways) <= 0, "only charts scroll sideways, never the page"
    messages = browser.call("POST", "/se/log", {"type": "browser"})
    assert [m for m in messages if m["level"] in {"SEVERE", "WARNING"}] == []
    events = [
        json.loads(m["message"])["message"]
        for m in browser.call("POST", "/se/log", {"type": "performance"})
    ]
    urls = {
        e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"
    }
    assert all(u.startswith("file:") and u.endswith("/report.html") for u in urls), urls


def test_doctor_tells_copies_strangers_and_agents_apart(models, tmp_path):
    base, agents = models
    copy = tmp_path / "copy"
    shutil.copytree(base, copy)
    stranger = save_base(tmp_path / "stranger", seed=7)
    broken = read_tensors(base)
    broken["model.norm.weight"][3] = math.nan
    write_tensors(tmp_path / "nan", broken)
    findings = ramerge.doctor(
        base=base,
        agents={
            "coder": agents["coder"],
            "copy": copy,
            "stranger": stranger,
            "nan": tmp_path / "nan",
        },
    )
    found = {f.model: (f.severity, f.code) for f in findings if f.severity != "warning"}
    assert found["coder"] == ("ok", "derived")
    assert found["copy"] == ("error", "identical")
    assert found["stranger"] == ("error", "another-base")
    assert found["nan"] == ("error", "numeric")


def test_doctor_says_when_little_is_unique(models, tmp_path):
    dense = save_agent(tmp_path / "dense", models[0], seed=5, density=0.95)
    findings = ramerge.doctor(base=models[0], agents={"dense": dense})
    assert [f.code for f in findings if f.severity == "warning"] == ["dense"]


def test_doctor_sees_an_adapter_that_was_not_read(models, tmp_path):
    agent = tmp_path / "agent"
    shutil.copytree(models[1]["coder"], agent)
    assert [f.code for f in ramerge.doctor(base=models[0], agents={"coder": agent})] == ["derived"]
    (agent / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    found, derived = ramerge.doctor(base=models[0], agents={"coder": agent})
    assert (found.severity, found.code) == ("warning", "adapter-beside")
    assert "adapter_config.json" in found.evidence
    assert (derived.severity, derived.code) == ("ok", "derived"), "a warning hides no good news"


def test_doctor_counts_padding_rows_and_names_what_differs_in_side_files(models, tmp_path):
    base, agent = tmp_path / "base", tmp_path / "agent"
    shutil.copytree(models[0], base)
    shutil.copytree(models[1]["coder"], agent)
    table = read_tensors(agent)
    name = next(n for n in table if n.endswith("embed_tokens.weight"))
    rows = table[name].shape[0]
    ours = {f"t{i}": i for i in range(rows - 3)}
    for directory, merges in ((base, ["a b", "c d"]), (agent, ["a b", "d c"])):
        tree = {"model": {"type": "BPE", "vocab": ours, "merges": merges}, "added_tokens": []}
        (directory / "tokenizer.json").write_text(json.dumps(tree))
    (base / "chat_template.jinja").write_text("one\ntwo\n")
    (agent / "chat_template.jinja").write_text("one\nthree\n")
    found = {f.code: f for f in ramerge.doctor(base=base, agents={"coder": agent})}
    assert f"{name}` has 3 rows beyond the last token, {rows - 4}" in found["padded-rows"].evidence
    assert found["padded-rows"].severity == "note"
    assert "merge 1 is `d c`, not `c d`" in found["merges-differ"].evidence
    assert "line 2 is `three\\n`, not `two\\n`" in found["chat-template"].evidence
    assert all(found[c].hint for c in ("merges-differ", "chat-template"))
    moved = int((read_tensors(base)[name][-3:] != table[name][-3:]).any(axis=1).sum())
    said = f"{moved} of them changed" if moved else "none changed"
    assert said in found["padded-rows"].evidence


def test_every_code_of_a_notice_is_in_the_docs():
    root = Path(__file__).parents[2]
    source = "".join(p.read_text() for p in (root / "src" / "ramerge").rglob("*.py"))
    codes = set(re.findall(r'Notice\(\s*"([a-z-]+)"|harmony\.say\(\s*"([a-z-]+)"', source))
    codes = {a or b for a, b in codes}
    page = (root / "docs" / "guides" / "probe.md").read_text()
    assert len(codes) > 25
    assert [c for c in sorted(codes | set(HINTS)) if f"`{c}`" not in page] == []
    codes |= {"buffers-copied", "excluded", "consolidated-ignored", "weights-ignored"}  # in tables
    assert set(HINTS) <= codes, "hints are for codes that exist"


def test_doctor_knows_an_adapter_that_was_read(models, tmp_path, monkeypatch):
    name = next(n for n in sorted(read_tensors(models[0])) if n.endswith("q_proj.weight"))
    rows, columns = read_tensors(models[0])[name].shape
    module = f"base_model.model.{name.removesuffix('.weight')}"
    noise = np.random.default_rng(0)
    tensors = {
        f"{module}.lora_A.weight": noise.normal(size=(2, columns)).astype(np.float32) * 0.05,
        f"{module}.lora_B.weight": noise.normal(size=(rows, 2)).astype(np.float32) * 0.05,
    }
    write_tensors(tmp_path / "adapter", tensors)
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"]}
    weights = next((tmp_path / "adapter").glob("*.safetensors"))
    weights.rename(weights.with_name("adapter_model.safetensors"))
    (tmp_path / "adapter" / "config.json").unlink(missing_ok=True)
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    for source in (tmp_path / "adapter", "./adapter", f"{models[0]}+./adapter"):
        found = ramerge.doctor(base=models[0], agents={"lora": source})
        assert [f.code for f in found] == ["derived"], source


def test_commands(models, tmp_path):
    import typer

    from ramerge.cli.doctor import doctor
    from ramerge.cli.probe import probe

    base, agents = models
    inputs = ["--base", str(base)] + [x for n, p in agents.items() for x in ("--agent", f"{n}={p}")]
    app = typer.Typer()
    app.command()(probe)
    result = CliRunner().invoke(
        app, [*inputs, "--html", str(tmp_path / "r.html"), "--json", str(tmp_path / "r.json")]
    )
    assert result.exit_code == 0, result.output
    assert "coder" in result.output and "pair" in result.output and "█" in result.output
    assert json.loads((tmp_path / "r.json").read_text())["version"] == 1
    assert (tmp_path / "r.html").read_text().startswith("<!DOCTYPE html>")
    app = typer.Typer()
    app.command()(doctor)
    assert CliRunner().invoke(app, inputs).exit_code == 0
    shutil.copytree(base, tmp_path / "copy")
    assert (
        CliRunner()
        .invoke(app, ["--base", str(base), "--agent", f"c={tmp_path / 'copy'}"])
        .exit_code
        == 4
    )
