"""The study's arms, controls and scoring: what is compared is what the tables say."""

import pytest

torch = pytest.importorskip("torch")

import json  # noqa: E402
import os  # noqa: E402
from pathlib import Path  # noqa: E402
from xml.etree import ElementTree as ET  # noqa: E402

import numpy as np  # noqa: E402

from ramerge.lab import (  # noqa: E402
    analysis,
    arms,
    comparisons,
    controls,
    merging,
    processes,
    report,
    scoring,
    statistics,
    study,
)
from ramerge.lab.agents import Cell, deterministic  # noqa: E402
from ramerge.lab.analysis import gather, planned  # noqa: E402
from ramerge.lab.environments import AGENTS, TASKS, environments  # noqa: E402
from ramerge.lab.environments.base import problems  # noqa: E402
from ramerge.lab.geometry import measure  # noqa: E402
from ramerge.lab.model import load  # noqa: E402

DEMO = Path(study.__file__).parents[1] / "miniature" / "data" / "demo"


@pytest.fixture(scope="module")
def case():
    deterministic()
    agents = {a: load(DEMO / a) for a in AGENTS}
    return arms.Case(load(DEMO / "base"), agents, agents, {}, seed=0)


@pytest.fixture(scope="module")
def bench():
    few = {n: problems(e, "test", 24, 0) for n, e in environments().items()}
    return scoring.Bench({n: ps[:12] for n, ps in few.items()}, few)


def vector(case, merged):
    return merging.flat(merging.task_vector(case.base, merged))


def test_the_merge_is_the_engines(case):
    merged = merging.merge(case.base, case.agents, "ram")
    taus = controls.vectors(case.base, case.agents)
    contributors = (taus != 0).sum(0).clamp(min=1)
    torch.testing.assert_close(
        vector(case, merged), taus.sum(0) / contributors, rtol=1e-4, atol=1e-6
    )


def test_random_partition_keeps_the_factors_and_moves_them(case):
    merged = controls.random_partition(case.base, case.agents, seed=1)
    taus = controls.vectors(case.base, case.agents)
    total = taus.sum(0)
    clear = total.abs() > 1e-4
    factors = vector(case, merged)[clear] / total[clear]
    contributors = (taus != 0).sum(0)
    alone = (contributors == 1).float()[contributors > 0].mean()
    assert abs(float((factors > 0.99).float().mean() - alone)) < 0.02
    # RAM's factor is 1 exactly where one agent changed the element; here that is chance.
    hit = (factors > 0.99) == (contributors[clear] == 1)
    assert float(hit.float().mean()) < 0.7


def test_the_bonus_on_shared_elements_leaves_unique_ones(case):
    merged = vector(case, controls.scaled_shared(case.base, case.agents, 0.1))
    ram = vector(case, merging.merge(case.base, case.agents, "ram"))
    contributors = (controls.vectors(case.base, case.agents) != 0).sum(0)
    one, more = contributors == 1, contributors > 1
    torch.testing.assert_close(merged[one], ram[one], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(merged[more], 1.1 * ram[more], rtol=1e-3, atol=1e-6)


def test_scale_rules(case):
    whole = arms.total_norm(case)
    summed = arms.engine("task_arithmetic")
    unit = arms.unit_norm(summed)(case)
    assert merging.norm(merging.task_vector(case.base, unit)) == pytest.approx(whole, rel=1e-4)
    matched = arms.norm_matched(case)
    ram = merging.merge(case.base, case.agents, "ram")
    sizes = [merging.norm(merging.task_vector(case.base, m)) for m in (matched, ram)]
    assert sizes[0] == pytest.approx(sizes[1], rel=1e-4)
    effect = arms.unit_effect(summed)(case)
    assert controls.effective_scale(case.base, case.agents, effect) == pytest.approx(1, rel=1e-3)
    assert arms.resized(case.base, case.base, 1.0).keys() == case.base.keys()  # null stays null


def test_union_is_ram_on_unique_elements_and_gram_elsewhere(case):
    union = next(a for a in arms.leads() if a.name == "gram_union").make(case)
    alone = (controls.vectors(case.base, case.agents) != 0).sum(0) == 1
    ram = merging.merge(case.base, case.agents, "ram")
    gram = arms.unit_norm(arms.engine("gram"))(case)
    assert torch.equal(merging.flat(union)[alone], merging.flat(ram)[alone])
    assert torch.equal(merging.flat(union)[~alone], merging.flat(gram)[~alone])


def test_every_tuned_method_has_the_same_number_of_looks():
    table = arms.arms(AGENTS)
    assert len({a.name for a in table}) == len(table)
    assert {len(a.grid) for a in table if a.grid} == {len(arms.NORMS)} == {8}
    assert {"ram", "ram_plus", "ties", "gram", "random"} <= {a.name for a in table}


def test_tuning_picks_by_validation_and_tests_once(case, bench):
    arm = next(a for a in arms.methods(3) if a.name == "ta_sum")
    looks = [
        bench.validate(arms.resized(case.base, arm.make(case), g * arms.total_norm(case)))
        for g in arms.NORMS
    ]
    published, scaled = scoring.score_arm(arm, case, bench)
    assert (published.variant, scaled.variant) == ("published", "scaled")
    assert scaled.validation == max(looks)
    assert scaled.setting == f"norm {arms.NORMS[int(np.argmax(looks))]:g}"
    assert published.right.shape == (len(TASKS), 24)


def test_geometry_of_the_demo_is_the_papers(case):
    found = measure(case.base, case.agents)
    assert found["coder"]["density"] == pytest.approx(0.032, abs=0.005)
    assert found["tools"]["density"] == pytest.approx(0.462, abs=0.03)
    assert found["memory"]["density"] == pytest.approx(0.543, abs=0.03)
    assert found["tools"]["rho"] == pytest.approx(1 / found["tools"]["unique"] - 1, rel=1e-6)


def few_arms(agents):
    wanted = {"base", *agents, "ta_mean", "ta_sum", "ties", "ram", "ram_plus", "norm_matched"}
    plain = [a for a in arms.arms(agents) if a.name in wanted | {"random", "gram", "gram_unit"}]
    return [arms.Arm(a.name, a.label, a.kind, a.make) for a in plain]


def score_one(cache, case, bench, monkeypatch):
    monkeypatch.setattr(study, "get_base", lambda *_, **__: case.base)
    monkeypatch.setattr(study, "make_case", lambda *_: case)
    monkeypatch.setattr(study, "arms", few_arms)
    monkeypatch.setattr(scoring.Bench, "draw", classmethod(lambda _: bench))
    study._score(cache, Cell("geometry", 0, 0), "fast")
    return study._read(cache, Cell("geometry", 0, 0), "fast")


def test_a_cell_repeats_to_the_bit_and_its_report_is_whole(tmp_path, case, bench, monkeypatch):
    one = score_one(tmp_path / "one", case, bench, monkeypatch)
    two = score_one(tmp_path / "two", case, bench, monkeypatch)
    assert one == two
    for module in ("analysis", "sections"):
        monkeypatch.setattr(f"ramerge.lab.{module}.PROBLEMS", 24, raising=False)
    results = gather([one, {**one, "agent_seed": 1}])
    right = results.rewards["coder", "published"][0]
    assert np.array_equal(right, study.unpack(one["rows"][1]["right"], 24))
    assert len(planned(results)) == 4
    costs = [{"arm": "ram", "seconds": 0.1, "memory": 2.0}]
    files = report.write([one, {**one, "agent_seed": 1}], costs, tmp_path / "out", planned=30)
    text = (tmp_path / "out" / "REPORT.md").read_text("utf-8")
    for heading in ("planned contrasts", "Did reinforcement", "Methods", "Controls", "Cost"):
        assert heading in text
    assert "2 of the 30 planned cells" in text
    assert "Every agent gained at least 20 points" in text
    html = (tmp_path / "out" / "report.html").read_text("utf-8")
    for figure in (f for f in files if f.suffix == ".svg"):
        ET.parse(figure)
    assert html.count("<svg") == 3 == sum(f.suffix == ".svg" for f in files)
    table = json.loads((tmp_path / "out" / "numbers.json").read_text("utf-8"))
    ram = table["geometry"]["arms"]["ram"]["published"]
    assert ram["tasks"] == pytest.approx(np.mean([ram[t] for t in TASKS[:3]]), abs=1e-5)


def pretended(gains, retention):
    """Results of four cells whose leads gain so much over the rivals, with so much retention."""
    luck = np.random.default_rng(0).random((4, 4, 200))
    rewards, validation = {}, {}
    for arm in ("ram_plus", "ties", "ta_sum", "gram", "gram_small", "gram_union", "tsv_m"):
        rate = np.full((1, 4, 1), 0.6 + gains.get(arm, 0.0))
        rate[:, 3] = retention.get(arm, 0.9)
        rewards[arm, "scaled"] = (luck < rate).astype(float)
        validation[arm, "scaled"] = float(rate.mean())
    cells, agents = [(0, 0), (0, 1), (1, 0), (1, 1)], []
    draws = statistics.draw([0, 0, 1, 1], 4, 200)
    return analysis.Results(
        cells, rewards, validation, {}, {}, {}, agents, draws, analysis.main_terms()
    )


def test_a_rule_holds_when_it_beats_all_three_and_keeps_retention():
    gains = {"gram": 0.1, "gram_small": 0.1, "gram_union": 0.1, "ties": -0.1}
    found = pretended({**gains, "tsv_m": -0.05}, {"gram_small": 0.8, "gram_union": 0.95})
    verdicts = {t.label: t.holds for t in analysis.trials({"bf16": found})["bf16"]}
    wanted = {"Gram": True, "Gram, smaller side": False, "Gram ∪ RAM": True, "TSV-M": False}
    assert verdicts == wanted  # the smaller side gained as much, and lost retention
    one_rival = pretended({"gram": 0.1, "ta_sum": 0.1}, {})
    assert not any(t.holds for t in analysis.trials({"bf16": one_rival})["bf16"])
    alone, among = (analysis.trials(r)["bf16"][0].against[0].p for r in ({"bf16": found}, {"bf16": found, "natural": one_rival}))  # fmt: skip
    assert among > alone  # more questions, one family
    text = comparisons.better({"bf16": found}).text[0]
    assert "Gram: in 1 of 1 regimes (bf16)" in text
    assert "TSV-M: in 0 of 1 regimes" in text


def test_a_rival_enters_with_the_tuning_that_validation_prefers():
    found = pretended({"gram": 0.1}, {})
    better = found.rewards["gram", "scaled"]
    found.rewards["ties", "tuned"], found.validation["ties", "tuned"] = better, 1.0
    against = analysis.trials({"bf16": found})["bf16"][0].against
    assert [c.label for c in against][1] == "Gram − TIES, tuned"
    assert against[1].tasks.value == 0


def test_work_apart_has_one_thread_and_leaves_this_process_alone(monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    assert processes.apart(threads_there) == "1"
    assert os.environ["OPENBLAS_NUM_THREADS"] == "7"


def threads_there():
    return os.environ["OPENBLAS_NUM_THREADS"]


def test_plans():
    assert len(study.planned(full=True).cells()) == 30
    assert [c.regime for c in study.planned().cells()] == ["geometry"] * 3
    assert study.planned(regimes=["bf16"], seeds=2).cells()[1] == Cell("bf16", 0, 1)
    with pytest.raises(study.ConfigError, match="no regime `bf61`"):
        study.planned(regimes=["bf61"])


def test_command_line(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from ramerge.lab import cost
    from ramerge.lab.cli import app

    monkeypatch.setattr(study, "run", lambda plan, *_, **__: [plan.level])
    monkeypatch.setattr(cost, "measure", list)
    monkeypatch.setattr(report, "write", lambda found, _, out, **__: [out / found[0]])
    done = CliRunner().invoke(app, ["run", "--full", "--out", str(tmp_path)])
    assert done.exit_code == 0
    assert str(tmp_path / "full") in done.stdout
    from ramerge.lab.stories import report as stories_report
    from ramerge.lab.stories import study as stories

    ran = []
    monkeypatch.setattr(stories, "run", lambda place, cells, **_: ran.append(place.source))
    monkeypatch.setattr(stories, "finished", lambda cache, cells: cells)
    monkeypatch.setattr(stories_report, "write", lambda found, out, planned: [f"{found} {planned}"])
    asked = ["stories", str(tmp_path), "--regime", "bf16", "--seeds", "2"]
    done = [CliRunner().invoke(app, [*asked, *more]) for more in ([], ["--report-only"])]
    assert [d.exit_code for d in done] == [0, 0]
    assert done[0].stdout == done[1].stdout == f"{stories.cells(['bf16'], 2)} 2\n"
    assert ran == [tmp_path]


def test_a_report_needs_results(tmp_path):
    from ramerge.lab.cli import write_report

    with pytest.raises(study.ConfigError, match="holds no results"):
        write_report(cache=tmp_path, out=tmp_path)
