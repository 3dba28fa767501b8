"""Vocabularies of real tokenizers brought together, and the rows of embeddings with them."""

import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from helpers.tokenizer_files import (
    TEXT,
    bpe,
    read,
    save_model,
    unigram,
    with_merges,
    with_special,
    wordpiece,
)
from ramerge._errors import ConfigError, CorruptInputError, IncompatibleError, MergeError
from ramerge.config.vocabulary import TokenizerRules, TokenRule
from ramerge.fit.tokenizer import tokenizer_json as tj
from ramerge.fit.tokenizer.tokenizers import plan_vocabulary
from ramerge.models.memory import MemoryCheckpoint
from ramerge.models.views.remap import RemappedCheckpoint, RowMap

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
BASE = bpe()
SIZE = BASE.get_vocab_size()
OTHER = ["completely other words wander wonder", "quizzical xylophones"] * 4
UNION = TokenizerRules("union")


def loaded(plan):
    """The output's tokenizer as the tokenizers library reads it; it has the planned ids."""
    file = plan.files["tokenizer.json"]
    tokenizer = (
        Tokenizer.from_str(file.decode())
        if isinstance(file, bytes)
        else Tokenizer.from_file(str(file))
    )
    assert tokenizer.get_vocab() == plan.tokens
    return tokenizer


def models_in(tmp_path, **tokenizers):
    given = {}
    for seed, (name, (tokenizer, options)) in enumerate(tokenizers.items()):
        given[name] = save_model(tmp_path / name, tokenizer, seed=seed, **options)
    return given


def test_the_same_tokenizer_everywhere_changes_nothing(tmp_path):
    found = models_in(tmp_path, base=(BASE, {"rows": SIZE + 7}), a=(BASE, {"rows": SIZE + 7}))
    plan = plan_vocabulary(UNION, found)
    assert plan.rows == SIZE + 7 and plan.config == {} and plan.notices == ()
    assert plan.files == {"tokenizer.json": (tmp_path / "base" / "tokenizer.json").resolve()}
    for name, model in plan.apply(found).items():
        assert model.spec(EMBED) == found[name].spec(EMBED)
        assert model.extent(EMBED) == found[name].extent(EMBED) is not None


def test_union_of_special_tokens(tmp_path):
    found = models_in(
        tmp_path,
        base=(BASE, {}),
        chat=(with_special(BASE, "<|im_start|>", "<|im_end|>"), {}),
        tool=(with_special(BASE, "<|tool|>", "<|im_end|>"), {}),
    )
    plan = plan_vocabulary(UNION, found)
    new = loaded(plan)
    assert plan.rows == SIZE + 3 and plan.config == {"vocab_size": SIZE + 3}
    assert [new.id_to_token(SIZE + i) for i in range(3)] == [
        "<|im_start|>",
        "<|im_end|>",
        "<|tool|>",
    ]
    assert new.encode("the task<|tool|>").ids == [*BASE.encode("the task").ids, SIZE + 2]
    mapped = plan.apply(found)
    base, chat, tool = (read(mapped[n], EMBED) for n in ("base", "chat", "tool"))
    own_chat, own_tool = read(found["chat"], EMBED), read(found["tool"], EMBED)
    assert all(
        np.array_equal(read(mapped[n], EMBED)[:SIZE], read(found[n], EMBED)[:SIZE]) for n in found
    )
    assert np.array_equal(chat[SIZE : SIZE + 2], own_chat[SIZE:])
    assert np.array_equal(tool[SIZE + 1 : SIZE + 3], own_tool[[SIZE + 1, SIZE]])
    both = ((own_chat[SIZE + 1] + own_tool[SIZE + 1]) / 2).astype(np.float32)
    assert np.array_equal(base[SIZE:], [own_chat[SIZE], both, own_tool[SIZE]])
    assert np.array_equal(chat[SIZE + 2], own_tool[SIZE]) and np.array_equal(
        tool[SIZE], own_chat[SIZE]
    )
    assert np.array_equal(read(mapped["base"], HEAD), -base)


def test_padding_rows_take_new_tokens_and_stay(tmp_path):
    """152,064 rows for 151,665 tokens: the size survives, new tokens move into the padding."""
    found = models_in(
        tmp_path,
        base=(BASE, {"rows": SIZE + 10}),
        chat=(with_special(BASE, "<|x|>"), {"rows": SIZE + 10}),
    )
    plan = plan_vocabulary(UNION, found)
    assert plan.rows == SIZE + 10 and plan.config == {}
    base = read(plan.apply(found)["base"], EMBED)
    assert np.array_equal(base[SIZE], read(found["chat"], EMBED)[SIZE])
    rest = np.arange(SIZE + 10) != SIZE
    assert np.array_equal(base[rest], read(found["base"], EMBED)[rest])


def test_base_tokenizer_for_agents_with_more_and_fewer_rows(tmp_path):
    found = models_in(
        tmp_path,
        base=(BASE, {"rows": SIZE + 3}),
        more=(with_special(BASE, "<|x|>"), {"rows": SIZE + 8}),
        few=(BASE, {}),
    )
    plan = plan_vocabulary(TokenizerRules("base"), found)
    assert plan.rows == SIZE + 3 and plan.tokens == BASE.get_vocab()
    mapped = {n: read(m, EMBED) for n, m in plan.apply(found).items()}
    base = read(found["base"], EMBED)
    assert np.array_equal(mapped["base"], base)
    assert np.array_equal(mapped["few"][SIZE:], base[SIZE:])
    assert np.array_equal(mapped["more"][SIZE], base[SIZE]), (
        "there it is a token that the output lacks"
    )
    assert np.array_equal(
        mapped["more"][SIZE + 1 :], read(found["more"], EMBED)[SIZE + 1 : SIZE + 3]
    )


def test_the_same_tokens_under_other_ids(tmp_path):
    tree = json.loads(BASE.to_str())
    vocab = tree["model"]["vocab"]
    shuffled = dict(
        zip(vocab, np.random.default_rng(1).permutation(len(vocab)).tolist(), strict=True)
    )
    tree["model"]["vocab"] = shuffled
    other = Tokenizer.from_str(json.dumps(tree))
    found = models_in(tmp_path, base=(BASE, {}), a=(other, {}))
    plan = plan_vocabulary(TokenizerRules("base"), found)
    mapped = read(plan.apply(found)["a"], EMBED)
    assert all(int(mapped[i, 0]) == other.token_to_id(t) for t, i in BASE.get_vocab().items())


def test_an_agents_tokenizer_brings_its_ids(tmp_path):
    agent = with_special(BASE, "<|im_end|>")
    found = models_in(tmp_path, base=(BASE, {}), chat=(agent, {"config": {"eos_token_id": SIZE}}))
    (tmp_path / "chat" / "generation_config.json").write_text("{}")
    (tmp_path / "chat" / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    plan = plan_vocabulary(TokenizerRules("chat"), found)
    assert plan.config == {"vocab_size": SIZE + 1, "eos_token_id": SIZE}
    assert set(plan.files) == {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    assert all("chat" in str(path) for path in plan.files.values()) and "vocab.json" in plan.dropped


@pytest.mark.parametrize(
    ("multiple", "rows"), [(1, SIZE), (64, -(-SIZE // 64) * 64), (1000, 1000), (None, SIZE)]
)
def test_pad_to_multiple_of(tmp_path, multiple, rows):
    found = models_in(tmp_path, base=(BASE, {}), a=(BASE, {}))
    plan = plan_vocabulary(TokenizerRules("base", (), multiple), found)
    assert plan.rows == rows
    assert np.all(read(plan.apply(found)["a"], EMBED)[SIZE:] == 0)


def test_rules_for_single_tokens(tmp_path):
    found = models_in(
        tmp_path,
        base=(BASE, {}),
        a=(with_special(BASE, "<|x|>"), {}),
        b=(with_special(BASE, "<|y|>", "<|x|>"), {}),
    )
    rules = TokenizerRules(
        "union",
        (
            TokenRule("<|x|>", "model", "b"),
            TokenRule("<|y|>", "zero"),
            TokenRule("<|end|>", "model", "a", force=True),
            TokenRule("<|new|>", "model_token", "base", source_token="<|end|>"),
            TokenRule("<|id|>", "model_token", "a", source_id=5),
            TokenRule("the", "zero", force=True),
        ),
    )
    plan = plan_vocabulary(rules, found)
    tokenizer = loaded(plan)
    assert tokenizer.encode("a<|new|><|id|>").tokens[-2:] == ["<|new|>", "<|id|>"]
    own = {n: read(m, EMBED) for n, m in found.items()}
    got = {n: read(m, EMBED) for n, m in plan.apply(found).items()}
    at, end = plan.tokens, BASE.token_to_id("<|end|>")
    assert np.array_equal(got["base"][at["<|x|>"]], own["b"][SIZE + 1])
    assert np.array_equal(got["a"][at["<|x|>"]], own["a"][SIZE])
    assert np.all(got["a"][at["<|y|>"]] == 0) and np.array_equal(
        got["b"][at["<|y|>"]], own["b"][SIZE]
    )
    assert all(np.array_equal(got[n][end], own["a"][end]) for n in got)
    assert all(np.array_equal(got[n][at["<|new|>"]], own["base"][end]) for n in got)
    assert all(np.array_equal(got[n][at["<|id|>"]], own["a"][5]) for n in got)
    assert all(np.all(got[n][at["the"]] == 0) for n in got)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (TokenRule("<|n|>"), "no model has the token `<|n|>`"),
        (TokenRule("<|n|>", "model", "a"), "agent `a` has no token `<|n|>`, asked for `<|n|>`"),
        (
            TokenRule("<|n|>", "model_token", "base", source_token="<|m|>"),
            "the base has no token `<|m|>`, asked for `<|n|>`",
        ),
        (
            TokenRule("<|n|>", "model_token", "a", source_id=9999),
            f"agent `a` has {SIZE} rows, so none for id 9999, asked for `<|n|>`",
        ),
    ],
)
def test_rules_that_name_nothing(tmp_path, rule, message):
    found = models_in(tmp_path, base=(BASE, {}), a=(BASE, {}))
    with pytest.raises(ConfigError) as error:
        plan_vocabulary(TokenizerRules("base", (rule,)), found)
    assert error.value.message == message


def test_merges_are_taken_over_where_they_continue_the_donors(tmp_path):
    text = "zq zqx"
    longer = with_merges(BASE, ("z", "q"), ("zq", "x"), ("Ġ", "zqx"))
    found = models_in(tmp_path, base=(BASE, {}), a=(longer, {}))
    plan = plan_vocabulary(UNION, found)
    new = loaded(plan)
    assert new.encode(text).tokens == longer.encode(text).tokens == ["zq", "Ġzqx"]
    assert new.encode("the agent<|end|>").ids == BASE.encode("the agent<|end|>").ids
    assert new.decode(new.encode(text).ids) == text
    assert [n.code for n in plan.notices] == ["tokens-added"]


def test_foreign_merges_are_left_alone(tmp_path):
    base, foreign = bpe(265), bpe(330, OTHER)
    found = models_in(tmp_path, base=(base, {}), a=(foreign, {}))
    plan = plan_vocabulary(UNION, found)
    new = loaded(plan)
    for line in [*TEXT, *OTHER]:
        assert new.encode(line).ids == base.encode(line).ids
    lost = set(foreign.get_vocab()) - set(base.get_vocab())
    assert [n.code for n in plan.notices] == ["tokens-added", "tokens-unreachable"]
    assert plan.notices[1].message.startswith(f"{len(lost)} of them can be decoded")
    for token in lost:
        there = foreign.decode([foreign.token_to_id(token)])
        assert new.decode([plan.tokens[token]]) == there


def test_the_bases_row_goes_before_all_others(tmp_path):
    more = with_special(BASE, "<|x|>")
    found = models_in(tmp_path, base=(more, {}), lacks=(BASE, {}), has=(more, {}))
    mapped = plan_vocabulary(UNION, found).apply(found)
    assert np.array_equal(read(mapped["lacks"], EMBED)[SIZE], read(found["base"], EMBED)[SIZE])


def test_wordpiece_and_unigram(tmp_path):
    piece, longer = wordpiece(60), wordpiece(70, OTHER)
    found = models_in(tmp_path / "w", base=(piece, {}), a=(longer, {}))
    plan = plan_vocabulary(UNION, found)
    assert (
        len(plan.tokens) > 60
        and loaded(plan).encode(OTHER[0]).tokens == longer.encode(OTHER[0]).tokens
    )
    one, two = unigram(40), unigram(48, text=OTHER)
    found = models_in(tmp_path / "u", base=(one, {}), a=(two, {}))
    plan = plan_vocabulary(UNION, found)
    new = loaded(plan)
    assert len(plan.tokens) > one.get_vocab_size() and len(plan.notices) == 1
    assert new.decode(new.encode(TEXT[0]).ids) == TEXT[0]
    assert new.decode(new.encode(OTHER[0]).ids) == OTHER[0]


def test_unigram_pieces_behind_added_tokens(tmp_path):
    one, two = with_special(unigram(40), "<|x|>"), unigram(48, text=OTHER)
    found = models_in(tmp_path, base=(one, {}), a=(two, {}))
    plan = plan_vocabulary(UNION, found)
    new = loaded(plan)
    assert new.encode(TEXT[0]).ids == one.encode(TEXT[0]).ids
    assert "tokens-unreachable" in [n.code for n in plan.notices]


def test_other_kinds_and_missing_tokenizers(tmp_path):
    found = models_in(
        tmp_path,
        base=(BASE, {}),
        a=(unigram(), {}),
        b=(None, {"rows": SIZE + 1}),
        c=(None, {"rows": SIZE}),
    )
    with pytest.raises(MergeError) as error:
        plan_vocabulary(UNION, found)
    assert [p.message for p in error.value.problems] == [
        "agent `b` has no `tokenizer.json`, so its rows have no names",
        "agent `a` has a tokenizer of kind Unigram, the base BPE",
    ]
    plan = plan_vocabulary(UNION, {n: found[n] for n in ("base", "c")})
    assert [n.code for n in plan.notices] == ["tokenizer-assumed"]


def test_an_added_token_without_a_row(tmp_path):
    found = models_in(tmp_path, base=(BASE, {}), a=(with_special(BASE, "<|x|>"), {"rows": SIZE}))
    with pytest.raises(IncompatibleError) as error:
        plan_vocabulary(UNION, found)
    assert (
        error.value.message
        == f"token `<|x|>` of agent `a` has id {SIZE}, but there are {SIZE} rows"
    )


def test_a_tied_base_lends_its_embedding_to_a_head(tmp_path):
    found = models_in(tmp_path, base=(BASE, {"rows": SIZE + 2, "head": False}), a=(BASE, {}))
    plan = plan_vocabulary(TokenizerRules("base"), found)
    mapped = plan.apply(found)["a"]
    assert np.array_equal(read(mapped, HEAD)[SIZE:], read(found["base"], EMBED)[SIZE:])
    assert np.array_equal(read(mapped, EMBED)[SIZE:], read(found["base"], EMBED)[SIZE:])


def test_dtypes_of_borrowed_rows(tmp_path):
    found = models_in(
        tmp_path,
        base=(BASE, {"dtype": ml_dtypes.bfloat16}),
        a=(with_special(BASE, "<|x|>"), {"dtype": np.float16}),
        b=(with_special(BASE, "<|x|>"), {}),
    )
    mapped = plan_vocabulary(UNION, found).apply(found)
    mean = (read(found["a"], EMBED)[SIZE] + read(found["b"], EMBED)[SIZE]) / 2
    assert np.array_equal(
        read(mapped["base"], EMBED)[SIZE], mean.astype(ml_dtypes.bfloat16).astype(float)
    )


def test_tokenizer_config_lists_new_tokens(tmp_path):
    found = models_in(tmp_path, base=(BASE, {}), a=(with_special(BASE, "<|x|>"), {}))
    config = {"added_tokens_decoder": {"0": {"content": "q"}}, "eos_token": "<|end|>"}
    (tmp_path / "base" / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "base" / "vocab.json").write_text("{}")
    plan = plan_vocabulary(UNION, found)
    written = json.loads(plan.files["tokenizer_config.json"])
    assert written["added_tokens_decoder"][str(SIZE)]["content"] == "<|x|>"
    assert written["eos_token"] == "<|end|>" and "vocab.json" in plan.dropped


def test_transformers_reads_the_union(tmp_path):
    transformers = pytest.importorskip("transformers")
    found = models_in(tmp_path, base=(BASE, {}), a=(with_special(BASE, "<|x|>"), {}))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    (tmp_path / "base" / "tokenizer_config.json").write_text(json.dumps(config))
    plan = plan_vocabulary(UNION, found)
    out = tmp_path / "out"
    out.mkdir()
    for name, file in plan.files.items():
        (out / name).write_bytes(file if isinstance(file, bytes) else file.read_bytes())
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert len(tokenizer) == SIZE + 1
    assert tokenizer.encode("the task<|x|>") == [*BASE.encode("the task").ids, SIZE]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({}, "is not a tokenizer"),
        ({"model": {"type": "BPE", "vocab": {"a": "0"}}}, "is not a tokenizer"),
        ({"model": {"type": "BPE", "vocab": {"a": 0, "b": 0}}}, "gives `a` and `b` the same id 0"),
        ({"model": {"type": "BPE", "vocab": {"a": -1}}}, "is not a tokenizer"),
        ({"model": {"vocab": [["a"]]}, "added_tokens": [{"id": 1}]}, "is not a tokenizer"),
        ({"model": {"vocab": 3}}, "is not a tokenizer"),
        ({"model": 3}, "is not a tokenizer"),
    ],
)
def test_broken_tokenizers(tmp_path, tree, message):
    (tmp_path / "tokenizer.json").write_text(json.dumps(tree))
    with pytest.raises(CorruptInputError, match=message):
        tj.read_tokenizer(tmp_path)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_remapped_tensor_reads_alike_in_pieces(data):
    """Any map, any pieces: what is read equals numpy's indexing of the whole."""
    height, rows, width = (data.draw(st.integers(1, n)) for n in (6, 9, 4))
    own = np.array(
        data.draw(st.lists(st.integers(-1, height - 1), min_size=rows, max_size=rows)), np.int64
    )
    matrix = np.arange(height * width, dtype=np.float32).reshape(height, width)
    other = MemoryCheckpoint(
        {"w": 100 + np.arange(3 * width, dtype=np.float32).reshape(3, width)}, "other"
    )
    lent = {
        int(r): tuple((other, "w", int(i)) for i in range(r % 4 if r % 4 < 3 else 0))
        for r in np.flatnonzero(own < 0)
    }
    model = RemappedCheckpoint(
        MemoryCheckpoint({"w": matrix, "x": matrix}, "m"), {"w": RowMap(own, lent)}
    )
    expected = np.zeros((rows, width))
    expected[own >= 0] = matrix[own[own >= 0]]
    for row, places in lent.items():
        if places:
            expected[row] = np.mean(
                [100 + i * width + np.arange(width) for _, _, i in places], axis=0
            )
    assert model.spec("w").shape == (rows, width) and model.spec("x").shape == (height, width)
    flat = expected.reshape(-1)
    cuts = sorted(data.draw(st.lists(st.integers(0, flat.size), max_size=5)))
    for start, stop in zip([0, *cuts], [*cuts, flat.size], strict=True):
        assert np.array_equal(read(model, "w", start, stop), flat[start:stop])


def test_biases_have_rows_too():
    model = MemoryCheckpoint({"lm_head.bias": np.arange(3, dtype=np.float32)}, "m")
    mapped = RemappedCheckpoint(model, {"lm_head.bias": RowMap(np.array([2, -1, 0]), {1: ()})})
    assert read(mapped, "lm_head.bias").tolist() == [2, 0, 0]
