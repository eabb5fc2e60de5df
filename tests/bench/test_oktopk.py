# SPDX-License-Identifier: Apache-2.0
"""Ok-Topk as a DDP hook: what it applies, what it keeps, and what it reuses. Ranks are threads here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from p4reduce_bench.training import oktopk
from p4reduce_bench.training.oktopk import OkTopkState, oktopk_hook, threshold
from tests.bench.ranks_as_threads import threads
from tests.support.hostlib.buckets import Bucket, model

NUMEL = 400


def gradients(ranks: int, seed: int) -> list[torch.Tensor]:
    """Return a gradient of integers for each rank, so that sums are exact.

    Updates, which are divided by the number of ranks, are exact for powers of two.
    """
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(-1000, 1001, (NUMEL,), generator=generator).float() for _ in range(ranks)]


class Job:
    """A job of ranks that reduce one bucket of one parameter."""

    def __init__(self, ranks: int, **options: Any) -> None:
        self.exchanges = threads(ranks)
        self.models = [model(a=(NUMEL,)) for _ in range(ranks)]
        self.states = [
            OkTopkState(exchange, made, **options) for exchange, made in zip(self.exchanges, self.models, strict=True)
        ]

    def step(self, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run one step on all ranks, and return the update that each applies."""

        def one(rank: int) -> torch.Tensor:
            bucket: Any = Bucket(given[rank].clone(), list(self.models[rank].parameters()))
            return oktopk_hook(self.states[rank], bucket).wait()

        with ThreadPoolExecutor(len(given)) as pool:
            return list(pool.map(one, range(len(given))))

    def kept(self) -> list[torch.Tensor]:
        return [state.residuals.state_dict()["a"] for state in self.states]


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_is_applied_and_what_is_kept_are_the_gradients(ranks: int) -> None:
    job = Job(ranks, ratio=0.05, reevaluate_every=3, repartition_every=4)
    given, applied = torch.zeros(NUMEL), torch.zeros(NUMEL)
    for seed in range(8):
        each = gradients(ranks, seed)
        updates = job.step(each)
        assert all(torch.equal(update, updates[0]) for update in updates)
        given += sum(each)
        applied += ranks * updates[0]
    assert torch.equal(applied + sum(job.kept()), given)
    assert all(kept.any() for kept in job.kept())


def test_the_largest_of_the_largest_are_applied() -> None:
    """The reference is the paper's two algorithms on dense vectors, with new thresholds in each iteration."""
    job, k = Job(2, ratio=0.05, reevaluate_every=1), math.ceil(0.05 * NUMEL)
    residuals = [torch.zeros(NUMEL) for _ in range(2)]
    for seed in range(6):
        given = gradients(2, seed)
        accumulated = [kept + gradient for kept, gradient in zip(residuals, given, strict=True)]
        chosen = [each.abs() >= each.abs().topk(k).values.min() for each in accumulated]
        total = sum(each * mask for each, mask in zip(accumulated, chosen, strict=True))
        applied = (total != 0) & (total.abs() >= total.abs().topk(k).values.min())
        residuals = [each * ~(mask & applied) for each, mask in zip(accumulated, chosen, strict=True)]
        assert torch.equal(job.step(given)[0], total * applied / 2)
        assert all(torch.equal(kept, residual) for kept, residual in zip(job.kept(), residuals, strict=True))


def test_thresholds_and_boundaries_are_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {"threshold": 0, "space_repartition": 0}
    for name in calls:

        def counted(*arguments: Any, name: str = name, real: Any = getattr(oktopk, name)) -> Any:  # noqa: B008
            calls[name] += 1
            return real(*arguments)

        monkeypatch.setattr(oktopk, name, counted)
    job = Job(2, ratio=0.05, reevaluate_every=2, repartition_every=5)
    for seed in range(6):
        job.step(gradients(2, seed))
    # Both ranks find two thresholds, of their own values and of the sum, in iterations 0, 2 and 4; they repartition
    # in iterations 0 and 5.
    assert calls == {"threshold": 2 * 2 * 3, "space_repartition": 2 * 2}


def test_all_is_applied_before_the_start_iteration() -> None:
    job = Job(2, ratio=0.01, start_iteration=2)
    for seed in range(4):
        given = gradients(2, seed)
        update = job.step(given)[0]
        assert torch.equal(update, sum(given) / 2) == (seed < 2)
        assert (not any(kept.any() for kept in job.kept())) == (seed < 2)


def test_a_sparse_step_sends_few_words() -> None:
    job, k = Job(2, ratio=0.05, reevaluate_every=1), math.ceil(0.05 * NUMEL)
    job.step(gradients(2, 1))
    before = [exchange.words for exchange in job.exchanges]
    job.step(gradients(2, 2))
    # Up to 2k each, indices and values: to split, to find the sum's threshold, and to gather.
    assert all(0 < exchange.words - words <= 6 * k for exchange, words in zip(job.exchanges, before, strict=True))


def test_the_threshold_is_the_kth_magnitude() -> None:
    values = np.array([3, -5, 1, 4, -2], np.float32)
    assert [threshold(values, k) for k in (1, 2, 4, 5, 9)] == [5, 4, 2, 0, 0]
