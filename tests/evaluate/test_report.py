"""The report: figures worked out by hand, honest cells, names that stay names, comparable runs only."""

import json
import re
from html.parser import HTMLParser

import pytest

from ramerge._errors import ConfigError, CorruptInputError
from ramerge.evaluate.compare import compare
from ramerge.evaluate.page import html
from ramerge.evaluate.records import Outcome, Score
from ramerge.evaluate.render import markdown
from ramerge.evaluate.report import build, published, write
from ramerge.evaluate.statistics import Estimate, Paired, average, difference, estimate, wilson


def outcomes(column, hits, domain="math", metric="accuracy", **more):
    return [
        Outcome(column, domain, str(n), Score({metric: (float(hit), 1.0)}, **more))
        if hit is not None
        else Outcome(column, domain, str(n), error="HTTP 500 (5 attempts)")
        for n, hit in enumerate(hits)
    ]


def report(found, seconds=None, settings=None):
    return build(found, seconds or {}, settings or {"limit": None, "data": {}, "scorers": {}})


# figures


def test_wilson_s_interval_as_in_the_textbooks():
    assert wilson(0.8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0.0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)


def test_a_score_is_hits_over_trials_and_tasks_are_the_unit():
    found = estimate([(1, 4), (3, 4), (0, 4), (4, 4)])
    assert (found.mean, found.n) == (50.0, 4)
    assert found.low < 30 and found.high > 70  # four tasks, not sixteen trials
    assert estimate([(1, 1)] * 8 + [(0, 1)] * 2).low == pytest.approx(49.02, abs=0.01)


def test_an_average_s_interval_by_hand():
    half = Estimate(50.0, 100, 40.0, 60.0)
    whole = Estimate(100.0, 50, 94.0, 100.0)
    found = average([("a", half), ("b", whole)])
    assert (found.mean, found.n) == (75.0, 150)
    assert found.low == pytest.approx(75 - (10**2 + 6**2) ** 0.5 / 2)
    assert found.high == pytest.approx(75 + 10 / 2)
    dependent = average([("a", half), ("a", half)])
    assert (dependent.low, dependent.high, dependent.n) == (40.0, 60.0, 100)


def test_differences_are_paired():
    wins = [(float(n % 2), 1.0) for n in range(200)]
    same = difference([Paired("c", wins, wins)])
    assert (same.mean, same.low, same.high) == (0.0, 0.0, 0.0)  # unpaired it would be about ±10
    better = [(1.0, 1.0)] * 20 + wins[20:]
    found = difference([Paired("c", better, wins)])
    assert found.mean == pytest.approx(5.0)
    assert 1.0 < found.low < found.mean < found.high < 10.0


def test_two_scores_of_one_data_set_share_their_draw():
    wins = [(float(n % 2), 1.0) for n in range(100)]
    lost = [(1.0 - h, t) for h, t in wins]
    nothing = [(0.0, 1.0)] * 100
    found = difference([Paired("c", wins, nothing), Paired("c", lost, nothing)])
    assert (found.low, found.mean, found.high) == pytest.approx((50.0, 50.0, 50.0))


def test_the_published_table_is_consistent_with_itself():
    paper = published()
    for row in paper["rows"]:
        assert len(row["scores"]) == len(paper["columns"])
        assert sum(row["scores"]) / 12 == pytest.approx(row["average"], abs=0.011), row["model"]


# cells


def test_a_column_with_errors_enters_no_average_and_wins_nothing():
    found = report(
        {
            "base": outcomes("A", [1, 0, 0, 0]) + outcomes("B", [1, 1]),
            "lucky": outcomes("A", [1, 1, None, None]) + outcomes("B", [0, 1]),
        }
    )
    assert found.cells["lucky"]["A", "accuracy"].errors == 2
    assert found.averages["base"]["all"].mean == 100.0
    assert found.averages["lucky"]["all"].mean == 50.0  # B alone
    assert ("A", "accuracy") not in found.best
    assert found.best["B", "accuracy"] == ("base",)
    assert found.differences["lucky"]["A", "accuracy"].mean == 50.0  # the two that both answered
    assert found.average_differences["lucky"].mean == -50.0
    assert found.errors == 2


def test_nobody_is_best_where_all_are_equal():
    assert report({"a": outcomes("A", [1]), "b": outcomes("A", [1])}).best == {}


def test_unit_tests_stand_beside_accuracy_and_other_metrics_below():
    metrics = {"accuracy": (1.0, 4.0), "unit tests": (6.0, 8.0), "best of 4": (1.0, 1.0)}
    found = report({"m": [Outcome("LiveBench", "coding", "1", Score(metrics))]})
    assert found.main == [("LiveBench", "accuracy"), ("LiveBench", "unit tests")]
    assert found.averages["m"]["all"].mean == 50.0


def test_the_pareto_front_of_average_and_time():
    hits = {"slow": [1, 1], "quick": [1, 0], "beaten": [1, 0], "worst": [0, 0]}
    seconds = {"slow": 9.0, "quick": 1.0, "beaten": 2.0, "worst": 1.0}
    found = report({name: outcomes("A", h) for name, h in hits.items()}, seconds)
    assert found.pareto == ("slow", "quick")
    assert "merge time, seconds" in html(found)


def test_an_evaluation_in_which_nothing_was_answered_is_still_a_report(tmp_path):
    found = report({"m": outcomes("A", [None])})
    write(found, tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["cells"][0]["score"]["mean"] is None
    assert "1 tasks got no answer" in (tmp_path / "report.html").read_text()


# the page

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "javascript:alert(1)",
    "[x](javascript:alert(1))",
    "a | b **c**",
    "{{ 7*7 }}",
    "=cmd|'/c calc'!A1",
    "\u202egnp.exe",
]
TAGS = """html head meta title style body main header h1 h2 p b section div table thead tbody tr th td small
i ul li svg text line circle footer wbr"""


class Elements(HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen = []

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_only_ever_text(name):
    rows = outcomes(f"set {name}", [1, 0], domain=name, flags=(name,))
    found = report({name: rows, "other": rows}, {name: 1.0}, {"data": {name: name}})
    page = Elements()
    page.feed(html(found))
    assert {tag for tag, _ in page.seen} <= set(TAGS.split())
    assert not [a for _, attributes in page.seen for a in attributes if a.startswith("on")]
    assert not [1 for _, attributes in page.seen if {"href", "src"} & attributes.keys()]
    assert ("{{ 7*7 }}" in html(found)) == (name == "{{ 7*7 }}")
    table = [line for line in markdown(found).splitlines() if line.startswith("|")]
    widths = [len(re.findall(r"(?<!\\)\|", line)) for line in table]
    assert all(
        a == b or line.startswith("| model")
        for a, b, line in zip(widths, widths[1:], table[1:], strict=False)
    )


def test_the_page_needs_nothing_and_allows_nothing():
    page = html(report({"m": outcomes("A", [1])}))
    assert "default-src 'none'" in page
    assert "<script" not in page
    assert "unsafe" not in page
    assert not re.search(r"(src|href|url)\s*[=(]", page)


def test_published_rows_stand_beside_shared_columns_only():
    column = "RULER-HotpotQA 50 docs"
    found = report({"m": outcomes(column, [1, 0], "memory", "published")})
    assert "RAM+" in html(found) and "79.69" in html(found) and "66.55" not in html(found)
    assert "published: RAM+ | 79.69" in markdown(found).replace("\\", "")
    assert "RAM+" not in html(report({"m": outcomes("GSM8K", [1, 0])}))


# compare


def run_of(path, models, settings=None):
    path.mkdir()
    write(report(models, settings=settings), path)
    return path


def test_two_runs_compare_as_one_run_would(tmp_path):
    a, b = outcomes("A", [1, 0, 0, 1]), outcomes("A", [1, 1, 0, None])
    both = report({"base": a, "merged": b})
    found = compare([run_of(tmp_path / "1", {"base": a}), run_of(tmp_path / "2", {"merged": b})])
    assert found.as_json() == both.as_json()


def test_the_first_metric_is_still_the_first_when_read_back(tmp_path):
    score = Score({"prompt strict": (1.0, 1.0), "instruction loose": (0.0, 2.0)})
    models = {"m": [Outcome("IFEval", "instructions", "1", score)]}
    assert compare([run_of(tmp_path / "1", models)]).main == [("IFEval", "prompt strict")]


def test_the_same_name_in_two_runs_is_told_apart(tmp_path):
    runs = [run_of(tmp_path / name, {"m": outcomes("A", [1])}) for name in ("first", "second")]
    assert compare(runs).models == ("m", "m (second)")


def test_runs_in_directories_of_one_name_are_never_pooled(tmp_path):
    runs = []
    for place, right in (("a", 1), ("b", 0), ("c", 1)):
        (tmp_path / place).mkdir()
        runs.append(run_of(tmp_path / place / "run", {"m": outcomes("A", [right] * 10)}))
    found = compare(runs)
    assert found.models == ("m", "m (run)", "m (run 2)")
    key = found.main[0]
    assert [found.cells[m][key].score.mean for m in found.models] == [100.0, 0.0, 100.0]
    assert [found.cells[m][key].score.n for m in found.models] == [10, 10, 10]


def test_runs_that_cannot_be_compared_are_refused(tmp_path):
    one = run_of(tmp_path / "1", {"m": outcomes("A", [1])}, {"limit": 10})
    two = run_of(tmp_path / "2", {"m": outcomes("A", [1])}, {"limit": 20})
    with pytest.raises(ConfigError, match="limit 20, the first run with 10"):
        compare([one, two])
    with pytest.raises(ConfigError, match="no finished evaluation"):
        compare([tmp_path])


@pytest.mark.parametrize(
    "damage", ["{", '{"model": "m"}', '{"model": "m", "score": {}}', '{"score": null}', "[1]"]
)
def test_a_damaged_run_is_named(tmp_path, damage):
    run = run_of(tmp_path / "1", {"m": outcomes("A", [1])})
    (run / "outcomes.jsonl").write_text(damage + "\n")
    with pytest.raises(CorruptInputError, match=r"outcome|JSON"):
        compare([run])


def test_a_damaged_report_is_named(tmp_path):
    run = run_of(tmp_path / "1", {"m": outcomes("A", [1])})
    (run / "report.json").write_text("{}")
    with pytest.raises(CorruptInputError, match=r"report\.json"):
        compare([run])
