"""Each suite through the whole pipeline against a loopback server: gold scores 100 %, wrong 0 %, oddities are told apart."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("aiohttp")

from helpers.evaluate import Reply, by_question, evaluate, question, scores
from ramerge._errors import ConfigError, CorruptInputError
from ramerge.evaluate import rows
from ramerge.evaluate.bm25 import Index
from ramerge.evaluate.records import Answer
from ramerge.evaluate.sandbox.launch import Limits
from ramerge.evaluate.suites import coding, ifeval, mathematics, memory, search
from ramerge.evaluate.suites.calls import read_calls
from ramerge.evaluate.suites.matching import exact, substring_published, substring_strict
from ramerge.evaluate.tokens import Estimated, counter

# mathematics


EQUALITIES = [
    ("12", "12", True),
    ("1,200", "1200", True),
    ("\\frac{1}{2}", "0.5", True),
    ("[0,\\infty)", "[0, \\infty)", True),
    ("x^2+2x+1", "(x+1)^2", True),
    ("12", "21", False),
    ("\\frac{1}{2}", "\\frac{2}{1}", False),
    ("3", "9^{9^{9^{9}}}", False),
]


def test_math_equality(tmp_path):
    pytest.importorskip("math_verify")
    table = [{"problem": f"p{n}?", "answer": gold} for n, (gold, _, _) in enumerate(EQUALITIES)]
    answers = {f"p{n}?": f"So $\\boxed{{{given}}}$." for n, (_, given, _) in enumerate(EQUALITIES)}
    evaluate(tmp_path, "math", by_question(answers), {"math500": table})
    outcomes = rows.read(tmp_path / "out" / "outcomes.jsonl", None)
    hits = [bool(o["score"]["metrics"]["accuracy"][0]) for o in outcomes]
    assert hits == [right for _, _, right in EQUALITIES]


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


def test_memory_wrong_is_zero_and_the_published_score_counts_bare_punctuation(tmp_path):
    wrong = by_question({}, "Therefore, the answer is somewhere else")
    found, _ = evaluate(tmp_path, "memory", wrong, {"hotpot": HOTPOT}, hotpot_docs=(3,))
    assert set(scores(found).values()) == {0.0}
    (tmp_path / "e").mkdir()
    found, _ = evaluate(
        tmp_path / "e",
        "memory",
        by_question({}, "the answer is ?"),
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


# whatever a model writes

PIECES = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    "f(a=",
    "=",
    "-",
    "'",
    '"',
    "\\",
    "**Test__Input:**",
    "**Test__Output:**",
    "```python",
    "```",
    "\\boxed{",
    "assert",
    "1",
    "e999",
    ".",
    "<answer>",
    "</answer>",
    "<search>",
    '{"name":"f","arguments":{',
    '"a":',
    "*",
    "nan",
]
TEXTS = st.one_of(
    st.text(), st.lists(st.sampled_from([*PIECES, "\n", "\0", "\ud800"])).map("".join)
)


@pytest.mark.filterwarnings("error")
@given(TEXTS)
@settings(deadline=None, max_examples=300)
def test_whatever_a_model_writes_is_scored(text):
    pytest.importorskip("langdetect")
    text = text.replace("__", " ")
    calls = read_calls(Answer(text))
    assert calls is None or all(len(call) == 1 for call in calls)
    assert (mathematics.boxed(text) or "") in text
    assert memory.stated_anyhow(text) in text
    assert memory.stated(text) == "" or "the answer is" in text.replace("*", "")
    kind, content = search.step(text)
    letters = iter(text)  # thoughts are cut out, and nothing is made up
    assert kind in {"answer", "search", "nothing"} and all(c in letters for c in content)
    problem = coding.Problem("t", (("", "assert f(1) == 1"),), Limits(), functional=True)
    assert (coding.code(text) or "") in text
    coding._generated(text, problem)
    coding._generated(text, replace(problem, functional=False))
    for name, (arguments, _, _) in INSTRUCTIONS.items():
        ifeval.score({"instruction_id_list": [name], "kwargs": [arguments]}, text)


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
