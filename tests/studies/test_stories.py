"""The second bench: llama2.c's format is read rightly, and texts are judged as the report says."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import json  # noqa: E402
import os  # noqa: E402
import struct  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402

from ramerge._errors import ConfigError  # noqa: E402
from ramerge.lab import arms, grpo  # noqa: E402
from ramerge.lab.agents import Cell, deterministic  # noqa: E402
from ramerge.lab.model import Shape, initialise, load  # noqa: E402
from ramerge.lab.rollout import sample  # noqa: E402
from ramerge.lab.stories import agents, bench, convert, report, study, tasks  # noqa: E402

TINY = Shape(vocabulary=0, hidden=16, inner=24, layers=2, heads=4, groups=2, positions=128)
GREEDY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
    "One day, she saw a big, red ball"
)


def real_source():
    """Where stories260K's files are, if anywhere: $RAMERGE_STORIES, or shared/data beside us."""
    given = os.environ.get("RAMERGE_STORIES")
    beside = [p / "shared" / "data" / "stories260k" for p in Path(__file__).resolve().parents]
    for place in [Path(given)] if given else beside:
        if (place / convert.MODEL).is_file():
            return place
    pytest.skip("stories260K's files are not here; RAMERGE_STORIES names their directory")


def write_vocabulary(path):
    words = [" t", "he", " the", " a", "er", ". ", " d", "og", " dog"]
    singles = [chr(c) for c in range(32, 127)]
    pieces = ["<unk>", "\n<s>\n", "\n</s>\n", *(f"<0x{b:02X}>" for b in range(256))]
    scores = [0.0] * len(pieces)
    pieces += words + singles
    scores += [-float(i) for i in range(len(words) + len(singles))]
    raw = struct.pack("<i", max(map(len, pieces)))
    for score, piece in zip(scores, pieces, strict=True):
        raw += struct.pack("<fi", score, len(piece.encode())) + piece.encode()
    path.write_bytes(raw)
    return len(pieces)


def write_model(path, shape, weights):
    """As llama2.c's version 0 export has it."""
    sizes = (shape.hidden, shape.inner, shape.layers, shape.heads, shape.groups)
    raw = struct.pack("<7i", *sizes, shape.vocabulary, shape.positions)
    blocks = ["input_layernorm", *(f"self_attn.{x}_proj" for x in "qkvo")]
    blocks += ["post_attention_layernorm", "mlp.gate_proj", "mlp.down_proj", "mlp.up_proj"]
    names = [f"model.layers.{i}.{b}.weight" for b in blocks for i in range(shape.layers)]
    for name in ("model.embed_tokens.weight", *names, "model.norm.weight"):
        raw += weights[name].numpy().tobytes()
    path.write_bytes(raw + bytes(4 * shape.positions * shape.head))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    deterministic()
    place = tmp_path_factory.mktemp("stories")
    count = write_vocabulary(place / convert.VOCABULARY)
    shape = Shape(count, TINY.hidden, TINY.inner, TINY.layers, TINY.heads, TINY.groups, 128)
    write_model(place / convert.MODEL, shape, initialise(shape, 0))
    return place, shape


@pytest.fixture
def small(monkeypatch):
    for module, names in ((bench, ("VALIDATION", "TEST")), (study, ("VALIDATION", "TEST"))):
        for name, value in zip(names, (6, 10), strict=True):
            monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(bench, "NEW", 8)


def test_rotary_pairs_become_halves(source):
    """Rotating neighbours and then reordering is reordering and then rotating halves."""
    shape = source[1]
    q = torch.randn(shape.hidden, shape.hidden, generator=torch.Generator().manual_seed(0))
    x = torch.randn(shape.hidden, generator=torch.Generator().manual_seed(1))
    angles = torch.arange(1.0, 1 + shape.head // 2)
    cos, sin = angles.cos(), angles.sin()
    pairs = (q @ x).view(shape.heads, -1, 2)
    a, b = pairs[..., 0], pairs[..., 1]
    wanted = torch.cat([a * cos - b * sin, a * sin + b * cos], dim=1)
    got = (convert._halves("q_proj", q, shape) @ x).view(shape.heads, shape.head)
    first, second = got.chunk(2, dim=1)
    rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=1)
    torch.testing.assert_close(rotated, wanted)


def test_conversion_keeps_every_weight_and_refuses_other_files(source, tmp_path):
    place, shape = source
    found, weights = convert.read_model(place / convert.MODEL)
    assert found == shape
    wanted = initialise(shape, 0)
    for name, weight in wanted.items():
        same = torch.equal(weights[name], weight)
        assert same == ("q_proj" not in name and "k_proj" not in name), name
        assert torch.equal(weights[name].flatten().sort()[0], weight.flatten().sort()[0])
    converted = load(convert.convert(place, tmp_path / "hf"))
    assert all(torch.equal(converted[n], w) for n, w in weights.items())
    cut = (place / convert.MODEL).read_bytes()[:-4]
    (tmp_path / convert.MODEL).write_bytes(cut)
    with pytest.raises(ConfigError, match=f"has {len(cut)} bytes"):
        convert.read_model(tmp_path / convert.MODEL)
    with pytest.raises(ConfigError, match=r"holds no tok512\.bin"):
        convert.convert(tmp_path, tmp_path / "no")


def test_tokenizer_merges_the_best_pair_first_and_gives_the_text_back(source, tmp_path):
    from tokenizers import Tokenizer

    convert.convert(source[0], tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    encoded = tokenizer.encode("the dog é 犬")
    assert encoded.tokens[:3] == ["<s>", "▁the", "▁dog"]
    assert "<0xC3>" in encoded.tokens
    assert tokenizer.decode(encoded.ids) == "the dog é 犬"


def test_the_real_model_tells_its_story(tmp_path):
    from tokenizers import Tokenizer

    place = real_source()
    weights = load(convert.convert(place, tmp_path))
    shape, _ = convert.read_model(place / convert.MODEL)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    turn = sample(weights, shape, [[1]], torch.zeros(1, 60, shape.vocabulary))
    text = tokenizer.decode(turn.answers[0].tolist())
    assert text.startswith(GREEDY)
    assert tokenizer.encode(text).ids == [1, *turn.answers[0].tolist()]
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_real_model_is_transformers_too(tmp_path):
    transformers = pytest.importorskip("transformers")
    from ramerge.lab.model import logits

    place = real_source()
    weights = load(convert.convert(place, tmp_path))
    shape, _ = convert.read_model(place / convert.MODEL)
    ids = torch.tensor([transformers.AutoTokenizer.from_pretrained(tmp_path)(GREEDY)["input_ids"]])
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        theirs = model(ids).logits
    ours = logits(weights, shape, ids, torch.zeros(1, dtype=torch.long))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_properties_of_texts():
    assert tasks.dog("He saw a dog.")
    assert tasks.dog("Two dogs")
    assert not tasks.dog("A hotdog? doggy!")
    assert tasks.sentences("A. B! C? D.")
    assert not tasks.sentences("A. B! C? D")
    assert tasks.dialogue('She said, "no".')
    assert not tasks.dialogue('She said, "no')
    assert not tasks.dialogue('""')


def test_openings_are_in_one_split_and_come_once():
    drawn = {s: tasks.openings(s, 256, 0) for s in ("train", "validation", "test")}
    assert all(len(set(d)) == 256 for d in drawn.values())
    assert not set(drawn["validation"]) & set(drawn["test"])
    assert not set(drawn["train"]) & (set(drawn["validation"]) | set(drawn["test"]))
    assert (
        tasks.openings("test", 5, 0) == tasks.openings("test", 5, 0) != tasks.openings("test", 5, 1)
    )


def test_retention_is_one_for_the_base_and_less_for_noise(source, tmp_path, small):
    root = agents.get_root(source[0], tmp_path)
    judge = bench.StoryBench.draw(root.author, root.weights)
    rewards = judge.examine(root.weights)
    assert rewards.shape == (4, 10)
    np.testing.assert_allclose(rewards[3], 1.0, rtol=1e-6)
    noise = torch.Generator().manual_seed(0)
    other = {n: w + 0.3 * torch.randn(w.shape, generator=noise) for n, w in root.weights.items()}
    assert judge.examine(other)[3].mean() < 0.9
    assert judge.validate(other) == judge.validate(other)


def test_training_ends_when_it_is_enough(source, tmp_path, small):
    root = agents.get_root(source[0], tmp_path)
    settings = grpo.Settings(5, 1e-3, groups=2, samples=2)

    def always(weights, step, generator):
        turns, _ = root.author.episode("dog", settings)(weights, step, generator)
        return turns, torch.ones(4)

    _, rewards = grpo.optimise(root.weights, root.author.shape, always, settings, enough=0.9)
    assert rewards == [1.0, 1.0]
    _, rewards = grpo.optimise(root.weights, root.author.shape, always, settings)
    assert len(rewards) == 5


def few(names):
    wanted = {"base", *names, "ta_sum", "ta_mean", "ties", "fisher", "ram", "ram_plus"}
    wanted |= {"norm_matched", "gram", "tsv_m", "random"}
    chosen = [a for a in arms.arms(names) if a.name in wanted]
    return [arms.Arm(a.name, a.label, a.kind, a.make, a.grid[:2], a.scaled) for a in chosen]


def test_a_cell_repeats_and_its_report_is_whole(source, tmp_path, small, monkeypatch):
    pushed = {"dog": 1, "sentences": 2, "dialogue": 3}

    def pretend(root, cell, name):
        luck = torch.Generator().manual_seed(pushed[name])
        moved = {
            n: w + 0.05 * torch.randn(w.shape, generator=luck) for n, w in root.weights.items()
        }
        return moved, [0.0, 1.0]

    monkeypatch.setattr(agents, "train_agent", pretend)
    monkeypatch.setattr(study, "arms", few)
    monkeypatch.setattr("ramerge.lab.scoring.NORMS", (0.5, 1.0))
    found = []
    for cache in (tmp_path / "one", tmp_path / "two"):
        place = study.Place(source[0], cache)
        for seed in (0, 1):
            study._score(place, Cell("natural", 0, seed))
        found.append(study.finished(cache, study.cells(["natural"], 2)))
    assert found[0] == found[1]
    assert study.rewards(found[0][0]["rows"][0]).shape == (4, 10)
    written = report.write(found[0], tmp_path / "out", planned=9)
    text = (tmp_path / "out" / "STORIES.md").read_text("utf-8")
    for piece in (
        "2 of the 9 planned cells",
        "No rule beats all three",
        "agent dialogue",
        "Fisher",
    ):
        assert piece in text
    assert "Failed to gain 20 points" in text  # noise is no training, and the report says so
    assert {p.name for p in written} >= {"STORIES.md", "stories.html", "stories-numbers.json"}
    table = json.loads((tmp_path / "out" / "stories-numbers.json").read_text("utf-8"))
    assert table["natural"]["arms"]["base"]["published"]["retention"] == pytest.approx(1, abs=1e-4)
