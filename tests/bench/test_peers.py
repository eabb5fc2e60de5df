# SPDX-License-Identifier: Apache-2.0
"""The published sparse allreduces give the sum, and send what their papers say. Ranks are threads here."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p4reduce_bench.peers import gtopk, zen
from p4reduce_bench.peers.algorithms import ALGORITHMS
from p4reduce_bench.peers.vectors import Vector
from tests.bench.ranks_as_threads import threads

NUMEL = 1 << 14
EXACT = sorted(set(ALGORITHMS) - {"gtopk"})


def run(name: str, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], list[int]]:
    """Run an algorithm on all ranks, and return their dense results and the number of words that each has sent."""
    size, numel = len(inputs), inputs[0].size
    exchanges = threads(size)
    with ThreadPoolExecutor(size) as pool:
        results = list(pool.map(lambda each: ALGORITHMS[name](each, Vector.of(inputs[each.rank]), numel), exchanges))
    dense = [result.dense(numel) if isinstance(result, Vector) else result for result in results]
    return dense, [exchange.words for exchange in exchanges]


def scattered(size: int, density: float, seed: int, numel: int = NUMEL) -> list[np.ndarray]:
    """Return an array of small integers for each rank, so that sums are exact in any order."""
    rng = np.random.default_rng(seed)
    return [
        (rng.integers(1, 100, numel) * rng.choice([-1, 1], numel) * (rng.random(numel) < density)).astype(np.float32)
        for _ in range(size)
    ]


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=12, deadline=None)
@given(
    size=st.sampled_from([2, 4, 8]),
    density=st.sampled_from([0.0, 0.001, 0.05, 0.7, 1.0]),
    skewed=st.booleans(),
    seed=st.integers(0, 100),
)
def test_the_sum(name: str, size: int, density: float, skewed: bool, seed: int) -> None:
    inputs = scattered(size, density, seed, 3000)
    if skewed:
        for each in inputs:
            each[seed + 100 :] = 0
    results, _ = run(name, inputs)
    for result in results:
        assert np.array_equal(result, np.sum(inputs, axis=0))


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_volumes_are_those_of_the_papers(name: str, size: int) -> None:
    """Volumes are in words of 4 bytes, for k elements on each rank and u in the sum.

    Limits have some slack, because parts are not quite equal.
    """
    inputs = scattered(size, 0.01, 1)
    k = max(int(np.count_nonzero(each)) for each in inputs)
    u = int(np.count_nonzero(np.sum([each != 0 for each in inputs], axis=0)))
    share, steps = (size - 1) / size, int(math.log2(size))
    most = {
        "agsparse": 2 * k * (size - 1),
        "sparcml": 2 * k * (size - 1),
        "sparcml-split": 2 * k * share + 2 * u * share,
        "sparcml-dense": 2 * k * share + NUMEL * share,
        "oktopk": 2 * k * share + 2 * u * share + 2 * size * size,
        "zen": 2 * k * share + (NUMEL / 32 / size + u / size) * (size - 1) + 8 * size,
        "gtopk": 2 * k * steps + 2 * size,
    }[name]
    _, sent = run(name, inputs)
    assert max(sent) <= 1.3 * most + 3 * size
    assert np.mean(sent) >= 0.6 * most - 8 * size


def test_gtopk_keeps_the_largest_of_each_step() -> None:
    inputs = scattered(4, 0.02, 3)
    results, _ = run("gtopk", inputs)
    expected = gtopk.expected([Vector.of(each) for each in inputs]).dense(NUMEL)
    assert all(np.array_equal(result, expected) for result in results)
    assert np.count_nonzero(expected) == max(np.count_nonzero(each) for each in inputs)


@pytest.mark.parametrize("values", [[3, -5, 5, 1, -5, 2], [0, 0, 0], [1]])
@pytest.mark.parametrize("count", range(7))
def test_of_equal_magnitudes_those_at_lower_indices_are_kept(values: list[float], count: int) -> None:
    vector = Vector(np.arange(len(values), dtype=np.int32) * 10, np.array(values, np.float32))
    kept = sorted(range(len(values)), key=lambda index: (-abs(values[index]), index))[:count]
    assert vector.largest(count).indices.tolist() == [10 * index for index in sorted(kept)]


def test_zens_parts_are_balanced_whatever_the_skew() -> None:
    parts = zen.owned(NUMEL, 8)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(NUMEL))
    for run_ in (slice(0, 1000), slice(0, NUMEL, 64)):
        chosen = np.arange(NUMEL)[run_]
        counts = [np.isin(chosen, part).sum() for part in parts]
        assert max(counts) < 2 * chosen.size / 8


@pytest.mark.parametrize("name", ["sparcml", "gtopk"])
def test_numbers_of_ranks_that_are_no_powers_of_two_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="3 ranks: accepted are powers of two"):
        run(name, scattered(3, 0.01, 1))
