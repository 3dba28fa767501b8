"""The study's own Llama is transformers' Llama, and its sampler samples from it."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from ramerge.lab import model, vocabulary  # noqa: E402
from ramerge.lab.environments import environments  # noqa: E402
from ramerge.lab.environments.base import problems  # noqa: E402
from ramerge.lab.rollout import answer, gumbel, score  # noqa: E402

SHAPE = model.Shape(hidden=32, inner=48, layers=2, heads=4, groups=2)
PROMPTS = ["C|+3*2-4|", "T|get a7;put c5|", "R|12345|"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("lab") / "base"
    weights = {n: w * 1.5 for n, w in model.initialise(SHAPE, 0).items()}
    model.save(weights, SHAPE, directory, torch.float32)
    return directory, model.load(directory)


def test_transformers_reads_the_directory_and_agrees(saved):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory, weights = saved
    tokenizer = AutoTokenizer.from_pretrained(directory)
    encoded = tokenizer(PROMPTS, padding=True, return_tensors="pt")
    padded, starts = vocabulary.left_padded([vocabulary.encode(p) for p in PROMPTS])
    assert encoded.input_ids.tolist() == padded
    assert tokenizer.decode(vocabulary.encode("R|12|"), skip_special_tokens=True) == "R|12|"
    theirs = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    positions = (encoded.attention_mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        wanted = theirs(**encoded, position_ids=positions).logits
    got = model.logits(weights, SHAPE, torch.tensor(padded), torch.tensor(starts))
    real = encoded.attention_mask.bool()
    torch.testing.assert_close(got[real], wanted[real], rtol=1e-4, atol=1e-4)


def test_bf16_directory_holds_bf16(saved, tmp_path):
    from safetensors.torch import load_file

    model.save(saved[1], SHAPE, tmp_path, torch.bfloat16)
    stored = load_file(tmp_path / "model.safetensors")
    assert {w.dtype for w in stored.values()} == {torch.bfloat16}
    assert set(stored) == set(SHAPE.tensors())


def test_cached_decoding_equals_full_recomputation(saved):
    weights = saved[1]
    noise = gumbel((3, 9, SHAPE.vocabulary), torch.Generator().manual_seed(1))
    turn, _ = answer(weights, SHAPE, PROMPTS, noise)
    tokens = torch.cat([turn.prompts, turn.answers[:, :-1]], 1)
    full = model.logits(weights, SHAPE, tokens, turn.starts)[:, turn.prompts.shape[1] - 1 :]
    logprobs = full.log_softmax(-1).gather(2, turn.answers[..., None])[..., 0]
    spoken = turn.answers != vocabulary.PAD
    torch.testing.assert_close(logprobs[spoken], turn.logprobs[spoken], rtol=1e-4, atol=1e-4)


def test_fixed_noise_samples_from_the_softmax(saved):
    weights = saved[1]
    generator = torch.Generator().manual_seed(0)
    turn, _ = answer(
        weights, SHAPE, ["R|7|"] * 6000, gumbel((6000, 1, SHAPE.vocabulary), generator)
    )
    seen = torch.bincount(turn.answers[:, 0], minlength=SHAPE.vocabulary) / 6000
    wanted = model.logits(weights, SHAPE, turn.prompts[:1], turn.starts[:1])[0, -1].softmax(-1)
    assert (seen - wanted).abs().max() < 0.03


def test_scores_repeat_and_greedy_is_zero_noise(saved):
    weights = saved[1]
    environment = environments()["memory"]
    drawn = problems(environment, "test", 20, 0)
    assert torch.equal(*(score(weights, SHAPE, environment, drawn, 5) for _ in range(2)))
    turn, _ = answer(weights, SHAPE, PROMPTS, torch.zeros(3, 1, SHAPE.vocabulary))
    best = model.logits(weights, SHAPE, turn.prompts, turn.starts)[:, -1].argmax(-1)
    assert torch.equal(turn.answers[:, 0], best)
