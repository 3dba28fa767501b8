"""Reinforcement learning raises rewards, obeys its regime, and repeats to the bit."""

import pytest

torch = pytest.importorskip("torch")

from pathlib import Path  # noqa: E402

from ramerge.lab import agents as cache  # noqa: E402
from ramerge.lab import grpo  # noqa: E402
from ramerge.lab.environments import environments  # noqa: E402
from ramerge.lab.model import Shape, initialise, load  # noqa: E402
from ramerge.lab.pretrain import Pretraining, pretrain  # noqa: E402
from ramerge.lab.regimes import masks  # noqa: E402

DEMO = Path(grpo.__file__).parents[1] / "miniature" / "data" / "demo"
TINY = Shape(hidden=16, inner=16, heads=2, groups=1)


@pytest.fixture(scope="module")
def base():
    cache.deterministic()
    return load(DEMO / "base")


def rl(base, steps, shape=Shape(), **options):  # noqa: B008
    settings = grpo.Settings(steps=steps, rate=5e-4, groups=6, samples=8, seed=3)
    return grpo.train(base, shape, environments()["coding"], settings, **options)


def test_rewards_rise(base):
    _, rewards = rl(base, 25)
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.2


def test_same_seed_same_bits(base):
    (one, first), (two, second) = rl(base, 2), rl(base, 2)
    assert first == second
    assert all(torch.equal(one[n], two[n]) for n in one)


def test_masks_confine_the_updates(base):
    allowed = masks(base, 0.1, seed=0)
    agent, _ = rl(base, 2, masks=allowed)
    changed = {n: agent[n] != w for n, w in base.items()}
    assert not any(bool((changed[n] & ~allowed[n]).any()) for n in base)
    assert sum(int(c.sum()) for c in changed.values()) > 0.8 * sum(
        int(m.sum()) for m in allowed.values()
    )


def test_rounding_every_step_keeps_the_bf16_grid_and_loses_small_steps(base):
    rounded, _ = rl(base, 2, after_step=grpo.round_to_bf16)
    free, _ = rl(base, 2)
    assert all(torch.equal(w, w.bfloat16().float()) for w in rounded.values())
    moved = [sum(int((a[n] != w).sum()) for n, w in base.items()) for a in (rounded, free)]
    assert moved[0] < 0.5 * moved[1]


def test_advantages_compete_within_a_group():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    advantages = grpo._advantages(rewards).view(2, 4)
    assert advantages[1].eq(0).all()
    assert advantages[0, 0] == -advantages[0, 1] > 0


def test_kl_penalty_keeps_the_agent_nearer_the_base(base):
    far, _ = rl(base, 6)
    settings = grpo.Settings(steps=6, rate=5e-4, groups=6, samples=8, seed=3, kl=1.0)
    near, _ = grpo.train(base, Shape(), environments()["coding"], settings)
    distance = [sum(float((a[n] - w).square().sum()) for n, w in base.items()) for a in (near, far)]
    assert distance[0] < distance[1]


def test_pretraining_lowers_the_loss_and_repeats():
    (one, losses), (two, _) = (
        pretrain(TINY, 0, Pretraining(steps=40, batch=8, rate=1e-2, warmup=4)) for _ in range(2)
    )
    assert losses[-1] < 0.7 * losses[0]
    assert all(torch.equal(one[n], two[n]) for n in one)
    assert all(torch.equal(w, w.bfloat16().float()) for w in one.values())
    fresh = initialise(TINY, 1)
    assert not torch.equal(
        fresh["model.embed_tokens.weight"], initialise(TINY, 0)["model.embed_tokens.weight"]
    )


def test_cached_agents_are_found_and_other_settings_are_not(tmp_path, base, monkeypatch):
    trained = []

    def pretend(cell, weights, task):
        trained.append(task)
        return {n: w + 1e-3 for n, w in weights.items()}, [0.0, 1.0]

    monkeypatch.setattr(cache, "train_agent", pretend)
    cell = cache.Cell("natural", 0, 0)
    first = cache.get_agents(tmp_path, cell, base)
    again = cache.get_agents(tmp_path, cell, base)
    assert trained == ["coding", "tools", "memory"]
    assert all(torch.equal(first["coder"][n], again["coder"][n]) for n in base)
    exact = cache.get_agents(tmp_path, cell, base, "fp32")
    assert all(torch.equal(exact["coder"][n], base[n] + 1e-3) for n in base)
    monkeypatch.setattr(cache, "VERSION", cache.VERSION + 1)
    cache.get_agents(tmp_path, cell, base)
    assert len(trained) == 6
