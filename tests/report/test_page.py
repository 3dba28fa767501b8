"""The page's pair matrices, overlap rows and phone layout, as a browser shows them."""

from __future__ import annotations

import json

import pytest

import ramerge
from helpers.models import save_agent, save_base
from ramerge.report import cells, svg
from ramerge.report.html import page

NAMES = (
    "coder",
    "tools",
    "memory-agent-with-a-long-name",
    "math",
    "search",
    "planner",
    "writer",
    "judge",
)


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    root = tmp_path_factory.mktemp("eight")
    base = save_base(root / "base")
    agents = {
        n: save_agent(root / n, base, seed=i, density=0.1 + 0.08 * i) for i, n in enumerate(NAMES)
    }
    return ramerge.probe(base=base, agents=agents, against=("ties",)).data


def some(data, n):
    """The same report as if of its first agents."""
    kept = [a["name"] for a in data["agents"][:n]]
    data = json.loads(json.dumps(data))
    return data | {
        "agents": data["agents"][:n],
        "pairs": [p for p in data["pairs"] if p["a"] in kept and p["b"] in kept],
        "intersections": [i for i in data["intersections"] if set(i["agents"]) <= set(kept)],
        "layers": [p | {"agents": p["agents"][:n]} for p in data["layers"]],
        "dilution": [d | {"agents": d["agents"][:n]} for d in data["dilution"]],
    }


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_every_pair_stands_in_every_matrix(eight, n):
    html = page(some(eight, n))
    assert html.count('class="matrix"') == (3 if n > 1 else 0)
    for pair in some(eight, n)["pairs"]:
        for a, b in ((pair["a"], pair["b"]), (pair["b"], pair["a"])):
            assert f"{a} and {b}: overlap against chance {pair['ratio']:.2f}×" in html
            assert f"{a} and {b}: sign conflict {svg.percent(pair['sign_conflict'])}" in html
            cosine = f"{pair['cosine']:+.2f}".replace("-0.00", "0.00").replace("-", "−")
            assert f"{a} and {b}: cosine of task vectors {cosine}" in html


def test_masks_that_agree_are_one_bar_and_others_are_named(eight):
    data = some(eight, 2)
    first, second = (a["density_by_mask"] for a in data["agents"])
    first |= dict.fromkeys(first, 0.5)
    second |= {"abs": 0.25, "exact": 0.5, "grid": 0.125}
    html = page(data)
    assert html.count("all 50.0 %</text>") == 1
    for text in ("abs 25.0 %", "exact 50.0 %", "grid 12.5 %"):
        assert html.count(f"{text}</text>") == 1


def test_long_names_are_cut_beside_charts_and_whole_where_one_hovers(eight):
    html = page(some(eight, 3))
    assert ">memory-agent-wi…<title>memory-agent-with-a-long-name</title>" in html


def test_every_intersection_is_drawn(eight):
    html = page(eight)
    assert len(eight["intersections"]) > 100
    for met in eight["intersections"]:
        assert f"only {' + '.join(met['agents'])}: {met['elements']:,} elements" in html


def test_deep_models_go_on_below():
    shade = cells.Shade(float, svg.percent)
    columns = [str(i) for i in range(80)]
    chart = cells.heat_map(
        columns, ["q", "k"], [[0.5] * 80, [None] * 40 + [0.25] * 40], "density", shade
    )
    assert chart.count('class="cells"') == 2 and chart.count("density 50.0 %") == 80
    assert chart.count("k, layer") == 40 and chart.count('class="t">k<') == 1


def test_a_value_of_nothing_is_a_cell_and_a_missing_one_is_not():
    chart = cells.heat_map(
        ["0", "1"], ["q"], [[0.0, None]], "density", cells.Shade(float, svg.percent)
    )
    assert chart.count("<rect") == 1 and "q, layer 0: density 0.0 %" in chart


def shown(browser, tmp_path, data, width):
    (tmp_path / "report.html").write_text(page(data), encoding="utf-8")
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    command = {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics}
    browser.call("POST", "/goog/cdp/execute", command)
    browser.call("POST", "/url", {"url": (tmp_path / "report.html").as_uri()})


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("n", [2, 8])
def test_no_chart_is_shrunk_and_the_page_never_scrolls_sideways(eight, browser, tmp_path, n, width):
    shown(browser, tmp_path, some(eight, n), width)
    page_width, room = browser.script(
        "const e = document.documentElement; return [e.scrollWidth, e.clientWidth]"
    )
    assert page_width == room
    shrunk = browser.script(
        "return [...document.querySelectorAll('svg[viewBox]:not(.grow)')].filter(s =>"
        " s.checkVisibility() && s.getBoundingClientRect().width < s.viewBox.baseVal.width - 1).length"
    )
    assert shrunk == 0
    outside = browser.script(
        "return [...document.querySelectorAll('h1,h2,h3,p,button,input,.names,.dots')].filter(e =>"
        f" e.checkVisibility() && e.getBoundingClientRect().right > {width}).map(e => e.outerHTML.slice(0, 90))"
    )
    assert outside == []


@pytest.mark.browser
def test_hovering_says_the_pair_and_the_value(eight, browser, tmp_path):
    shown(browser, tmp_path, some(eight, 3), 1280)
    said = browser.script(
        "const cell = document.querySelector('.matrix g rect');"
        "cell.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: 100, clientY: 100}));"
        "const tip = document.getElementById('tip'); return [tip.hidden, tip.textContent]"
    )
    ratio = eight["pairs"][0]["ratio"]
    assert said == [False, f"coder and tools: overlap against chance {ratio:.2f}×"]
    gone = browser.script(
        "document.querySelector('h1').dispatchEvent(new PointerEvent('pointermove', {bubbles: true}));"
        "return document.getElementById('tip').hidden"
    )
    assert gone is True


@pytest.mark.browser
def test_saved_data_is_what_was_probed(eight, browser, tmp_path):
    shown(browser, tmp_path, some(eight, 2), 1280)
    saved = browser.script(
        "const made = []; HTMLAnchorElement.prototype.click = function () { made.push([this.download, this.href]); };"
        "document.getElementById('save-json').click(); document.getElementById('save-csv').click();"
        "return made.map(([n, h]) => [n, decodeURIComponent(h.slice(h.indexOf(',') + 1))])"
    )
    (json_name, text), (csv_name, table) = saved
    assert (json_name, csv_name) == ("probe.json", "layers.csv")
    assert json.loads(text) == some(eight, 2)
    assert len(table.splitlines()) == 1 + 2 * len(eight["layers"])


@pytest.mark.browser
def test_the_dilution_table_has_a_row_an_agent(eight, browser, tmp_path):
    shown(browser, tmp_path, some(eight, 3), 390)
    rows = browser.script(
        "return [...document.querySelectorAll('#dilution tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    agents = eight["dilution"][0]["agents"][:3]
    wanted = [
        [a["name"], *(svg.number(a[region]["projection"]) for region in ("unique", "shared"))]
        for a in agents
    ]
    assert rows == wanted
