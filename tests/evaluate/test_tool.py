"""Tool calls: read in every form, never evaluated, scored by bfcl-eval's checker on all questions of its wheel."""

import json

import pytest

pytest.importorskip("aiohttp")

from helpers.evaluate import Reply, by_question, evaluate, scores, write_rows
from ramerge.evaluate import rows
from ramerge.evaluate.records import Answer
from ramerge.evaluate.suites.calls import read_calls


@pytest.mark.parametrize(
    "text",
    [
        "[geo.find(city='Oslo', depth=-2), stop(now=True)]",
        "geo.find(city='Oslo', depth=-2), stop(now=True)",
        "```python\n[geo.find(city='Oslo', depth=1-3), stop(now=True)]\n```",
        '<think>geo?</think><tool_call>\n{"name": "geo.find", "arguments": {"city": "Oslo", "depth": -2}}\n</tool_call>\n<tool_call>{"name": "stop", "arguments": {"now": true}}</tool_call>',
        '<tool_call>\n{"name": "geo.find", "parameters": {"city": "Oslo", "depth": -2}}\n{"name": "stop", "parameters": {"now": true}}\n</tool_call>',
        '{"name": "geo.find", "parameters": {"city": "Oslo", "depth": -2}}; {"name": "stop", "parameters": {"now": true}}',
        '[{"name": "geo.find", "arguments": {"city": "Oslo", "depth": -2}}, {"name": "stop", "arguments": "{\\"now\\": true}"}]',
    ],
)
def test_calls_are_read_in_every_family_s_form(text):
    assert read_calls(Answer(text)) == [
        {"geo.find": {"city": "Oslo", "depth": -2}},
        {"stop": {"now": True}},
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I cannot help",
        "[f(a=1), 2]",
        '<tool_call>{"name": 3}</tool_call>',
        "<tool_call>{",
        "{" * 5000,
        "f(" * 5000,
        "[f(a=x.y)]",
        "[f(a=9**9**9)]",
    ],
)
def test_what_is_no_call_is_none(text):
    assert read_calls(Answer(text)) is None


def test_a_call_is_never_evaluated(tmp_path):
    mark = tmp_path / "executed"
    for attack in (
        f"[f(a=1 + __import__('os').system('touch {mark}'))]",
        f"[f(a=[x for x in [open({str(mark)!r}, 'w')]])]",
        f"[f(a=(lambda: open({str(mark)!r}, 'w'))())]",
        f"[f(a={{}}[__import__('os').system('touch {mark}')])]",
    ):
        read_calls(Answer(attack))
    assert not mark.exists()


FUNCTION = {
    "name": "geo.find",
    "description": "Find a city.",
    "parameters": {
        "type": "dict",
        "properties": {
            "city": {"type": "string", "description": "c"},
            "depth": {"type": "integer", "description": "d"},
        },
        "required": ["city"],
    },
}


def bfcl(directory, category, gold):
    (directory / "possible_answer").mkdir(exist_ok=True, parents=True)
    asked = {
        "id": f"{category}_0",
        "question": [[{"role": "user", "content": f"ask {category}"}]],
        "function": [FUNCTION],
    }
    write_rows(directory / f"BFCL_v4_{category}.json", [asked])
    if gold:
        write_rows(
            directory / "possible_answer" / f"BFCL_v4_{category}.json",
            [{"id": asked["id"], "ground_truth": gold}],
        )


@pytest.mark.parametrize("form", ["prompt", "template", "toolrl"])
def test_tool_gold_and_wrong(tmp_path, form):
    pytest.importorskip("bfcl_eval")
    oslo, rome = ({"geo.find": {"city": [name], "depth": [2, ""]}} for name in ("Oslo", "Rome"))
    bfcl(tmp_path / "d", "simple_python", [oslo])
    bfcl(tmp_path / "d", "live_parallel", [oslo, rome])
    bfcl(tmp_path / "d", "irrelevance", None)
    bfcl(tmp_path / "d", "live_relevance", None)

    def call(city, **more):
        name = "geo_find" if form == "template" else "geo.find"
        return {"name": name, "arguments": json.dumps({"city": city, **more})}

    gold = {
        "simple_python": Reply(calls=[call("oslo", depth=2)]),
        "live_parallel": Reply(calls=[call("Rome"), call("Oslo")]),
        "irrelevance": "None of the functions fits.",
        "live_relevance": Reply(calls=[call("Oslo")]),
    }
    wrong = {
        "simple_python": Reply(calls=[call("Oslo", depth="2")]),
        "live_parallel": Reply(calls=[call("Oslo"), call("Oslo")]),
        "irrelevance": Reply(calls=[call("Oslo")]),
        "live_relevance": "I do not know",
    }
    found, server = evaluate(
        tmp_path, "tool", by_question(gold), {"bfcl": str(tmp_path / "d")}, tool_format=form
    )
    assert set(scores(found).values()) == {100.0}
    assert len(found) == 4
    assert all(("tools" in body) == (form == "template") for body in server.bodies)
    if form == "template":
        sent = server.bodies[0]["tools"][0]["function"]
        assert (sent["name"], sent["parameters"]["type"]) == ("geo_find", "object")
    (tmp_path / "w").mkdir()
    found, _ = evaluate(
        tmp_path / "w", "tool", by_question(wrong), {"bfcl": str(tmp_path / "d")}, tool_format=form
    )
    assert set(scores(found).values()) == {0.0}


def test_the_prompt_is_the_wheel_s_own():
    wheel = pytest.importorskip("bfcl_eval.constants.default_prompts")
    from ramerge.evaluate.suites import tool

    style = wheel.PROMPT_STYLE_TEMPLATES["classic"]
    called = style["tool_call_no_tag"].format(
        output_format=wheel.OUTPUT_FORMAT_MAPPING["python"],
        param_types=wheel.PARAM_TYPE_MAPPING["python"],
    )
    listed = style["available_tools"].format(
        format="json", functions=json.dumps([FUNCTION], indent=4)
    )
    whole = wheel.PROMPT_TEMPLATE_MAPPING["plaintext"].format(
        persona=style["persona"],
        task=style["task"],
        tool_call_format=called,
        multiturn_behavior=style["multiturn_behavior"],
        available_tools=listed,
    )
    asked = {"question": [[{"role": "user", "content": "hi"}]], "function": [FUNCTION]}
    assert tool.prompt(asked, "prompt").messages == (("system", whole), ("user", "hi"))


WRONG_BY_ITSELF = {
    "parallel_multiple_12",  # gold has a parameter that the function has not
    "parallel_multiple_26",  # the same
    "live_simple_106-63-0",  # gold leaves a required parameter out, or allows none of its values
    "live_simple_112-68-0",
    "live_multiple_507-149-4",
    "live_multiple_862-181-3",
    "live_multiple_964-207-0",
}


CONTRADICTED = {  # the same prompt stands in another category, where the right answer is a call
    "live_irrelevance_118-7-8",
    "live_irrelevance_565-173-0",
    "live_irrelevance_567-175-0",
}


@pytest.mark.parametrize("right", [True, False])
def test_all_gold_of_the_wheel(tmp_path, right):
    """Every possible answer of bfcl-eval itself is right, but for ten that nobody can get right; others are wrong."""
    pytest.importorskip("bfcl_eval")
    from ramerge.evaluate.suites import tool

    directory, replies = tool._wheel(), {}
    for category in tool.CATEGORIES:
        gold = {}
        if "relevance" not in category:
            table = rows.read(tool._file(directory / "possible_answer", category), None)
            gold = {row["id"]: row["ground_truth"] for row in table}
        for asked in rows.read(tool._file(directory, category), None):
            wanted = gold.get(asked["id"]) or [{"f": {}}] * category.endswith("live_relevance")
            if not right:
                renamed = [{f"no_{name}": a for name, a in call.items()} for call in wanted]
                calls = category != "live_relevance" and (renamed or [{"f": {}}])
            else:
                calls = wanted
            text = [f"<tool_call>{json.dumps(written(call))}</tool_call>" for call in calls or []]
            key = json.dumps(tool.prompt(asked, "prompt").messages)
            replies.setdefault(key, "\n".join(text) or "No function fits.")

    def script(body):
        return Reply(replies[json.dumps([(m["role"], m["content"]) for m in body["messages"]])])

    evaluate(tmp_path, "tool", script, {})
    outcomes = rows.read(tmp_path / "out" / "outcomes.jsonl", None)
    hits = {o["item"] for o in outcomes if o["score"]["metrics"]["accuracy"][0]}
    assert len(outcomes) == 3491
    missed = {o["item"] for o in outcomes} - hits
    assert missed == WRONG_BY_ITSELF | CONTRADICTED if right else not hits


OMITTED = object()


def written(call):
    ((name, arguments),) = call.items()
    found = {k: first(alternatives) for k, alternatives in arguments.items()}
    return {"name": name, "arguments": {k: v for k, v in found.items() if v is not OMITTED}}


def first(alternatives):
    """The first listed value that is not "" (which means: may be left out)."""
    return next((plain(a) for a in alternatives if a != ""), OMITTED)


def plain(value):
    if isinstance(value, dict):
        found = {k: first(v) if isinstance(v, list) else v for k, v in value.items()}
        return {k: v for k, v in found.items() if v is not OMITTED}
    return (
        [plain(v) if isinstance(v, dict) else v for v in value]
        if isinstance(value, list)
        else value
    )
