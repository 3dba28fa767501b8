"""Bootstrap and Holm on cases whose answer is known."""

import numpy as np
import pytest

from ramerge.lab import statistics as st


def rewards(rate, seed, cells=6, prompts=200):
    rng = np.random.default_rng(seed)
    return (rng.random((cells, 4, prompts)) < rate).astype(float)


def test_holm_is_the_textbooks():
    assert st.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert st.holm([0.9, 0.8]) == [1.0, 1.0]


def test_equal_models_do_not_differ():
    draws = st.draw([0, 0, 0, 1, 1, 1], 4, 200)
    found = st.contrast(rewards(0.5, 0), rewards(0.5, 0), draws, st.task_mean)
    assert (found.value, found.low, found.high, found.p) == (0, 0, 0, 1)


def test_a_clear_difference_is_found_and_its_interval_holds_it():
    draws = st.draw([0, 0, 0, 1, 1, 1], 4, 200)
    found = st.contrast(rewards(0.8, 1), rewards(0.5, 2), draws, st.all_mean)
    assert found.low < 0.3 < found.high
    assert found.p < 0.01


def test_intervals_cover():
    covered = 0
    for seed in range(60):
        draws = st.draw([0] * 6, 4, 100, seed=seed, replicates=300)
        found = st.estimate(rewards(0.6, 1000 + seed, prompts=100), draws, st.task_mean)
        covered += found.low <= 0.6 <= found.high
    assert covered >= 51  # 95 % of 60 is 57


def test_pairing_by_prompt_narrows_the_difference():
    draws = st.draw([0] * 6, 4, 200)
    first = rewards(0.6, 0)
    second = np.where(rewards(0.05, 1) > 0, 0.0, first)  # the same luck, a little worse
    paired = st.contrast(first, second, draws, st.task_mean)
    apart = st.contrast(first, rewards(0.57, 2), draws, st.task_mean)
    assert paired.high - paired.low < 0.6 * (apart.high - apart.low)


def test_every_base_is_in_every_replicate():
    draws = st.draw([0, 0, 1, 1, 1], 4, 10)
    assert draws.cells[:, :2].sum(1) == pytest.approx(np.full(st.REPLICATES, 0.4))
    assert draws.cells.sum(1) == pytest.approx(np.ones(st.REPLICATES))
    assert draws.prompts.sum(2) == pytest.approx(np.ones((st.REPLICATES, 4)))


def test_metrics_by_hand():
    accuracy = np.array([[0.8, 0.4, 0.6, 1.0]])
    assert st.task_mean(accuracy) == pytest.approx([0.6])
    assert st.all_mean(accuracy) == pytest.approx([0.7])
    assert st.retention(accuracy) == pytest.approx([1.0])
    assert st.minimum(accuracy) == pytest.approx([0.4])
    relative = st.composite(np.array([[0.8, 0.8, 0.6]]))
    assert relative(accuracy) == pytest.approx([0.5 ** (1 / 3)])


def test_common_prompts_are_drawn_once_for_all_tasks():
    apart, together = (st.draw([0, 0], 3, 40, replicates=50, common=c) for c in (False, True))
    assert apart.prompts.shape == together.prompts.shape == (50, 3, 40)
    assert np.array_equal(together.prompts[:, 0], together.prompts[:, 2])
    assert not np.array_equal(apart.prompts[:, 0], apart.prompts[:, 2])
    assert np.allclose(together.prompts.sum(2), 1)
