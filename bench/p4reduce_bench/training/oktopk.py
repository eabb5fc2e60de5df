# SPDX-License-Identifier: Apache-2.0
"""Ok-Topk as a DDP hook (Li and Hoefler, PPoPP 2022): its sparse allreduce with the error feedback of its SGD.

As published:

- Algorithm 1: local and global thresholds are exact every `reevaluate_every` iterations and reused in between.
  Boundaries are computed every `repartition_every` iterations.
- Algorithm 2: an element leaves the residuals only if it is both among the rank's own largest and the sum's largest.

Different:

- DDP's buckets are reduced one by one, with k elements of each, instead of one vector of the whole model.
- The learning rate is not in the residuals, since hooks see gradients before the optimizer. This matters if it changes.
- The hook does not overlap with the backward pass: each bucket is done before the next.

No `from __future__ import annotations` here: DDP inspects the hooks' annotations as objects.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch._C._distributed_c10d import GradBucket

from p4reduce.ddp.parameters import Parameters
from p4reduce.ddp.residuals import Residuals
from p4reduce_bench.peers.oktopk import allgatherv, balance_and_allgatherv, space_repartition, split_and_reduce
from p4reduce_bench.peers.vectors import Exchange, Vector


@dataclass
class _Reused:
    """The state of a bucket that is kept between iterations."""

    iterations: int = 0
    local_threshold: float = 0.0
    global_threshold: float = 0.0
    boundaries: list[int] = field(default_factory=list)


class OkTopkState:
    """The state of `oktopk_hook`. Gradients are float32 in the memory of the host, and finite.

    ratio: k as a share of a bucket's elements, above 0 and up to 1.
    start_iteration: the first iteration that leaves elements out; earlier ones apply the whole sum.
    reevaluate_every, repartition_every: the paper's tau' and tau, in iterations, from 1 on.
    """

    def __init__(
        self,
        exchange: Exchange,
        model: torch.nn.Module,
        *,
        ratio: float,
        start_iteration: int = 0,
        reevaluate_every: int = 32,
        repartition_every: int = 64,
    ) -> None:
        self.exchange = exchange
        self.residuals = Residuals()
        self.residuals.parameters = Parameters(model)
        self._ratio = ratio
        self._start_iteration = start_iteration
        self._iteration = 0
        self._reevaluate_every = reevaluate_every
        self._repartition_every = repartition_every
        self._reused: dict[tuple[int, ...], _Reused] = {}  # by a bucket's parameters: DDP forms other buckets later

    def average(self, bucket: GradBucket) -> torch.Tensor:
        """Run Algorithm 2 without the optimizer's step; return the bucket's buffer with the values to apply."""
        buffer, parameters = bucket.buffer(), bucket.parameters()
        self.residuals.add_to(buffer, parameters)
        accumulated: npt.NDArray[np.float32] = buffer.numpy()
        if self._iteration < self._start_iteration:
            # All elements are sent, so the thresholds are 0, and of no use to later iterations.
            update, indexes = self._sparse_allreduce(accumulated, accumulated.size, _Reused())
        else:
            k = math.ceil(self._ratio * accumulated.size)
            reused = self._reused.setdefault(tuple(map(id, parameters)), _Reused())
            update, indexes = self._sparse_allreduce(accumulated, k, reused)
        contributed = np.zeros_like(accumulated)
        contributed[indexes] = accumulated[indexes]
        self.residuals.subtract(torch.from_numpy(contributed), parameters, finite=True)
        accumulated[:] = update.dense(accumulated.size) / self.exchange.size
        self._iteration += bucket.is_last()
        return buffer

    def _sparse_allreduce(
        self, accumulated: npt.NDArray[np.float32], k: int, reused: _Reused
    ) -> tuple[Vector, npt.NDArray[np.int32]]:
        """Run Algorithm 1; return the sum's largest elements, and the indices to which this rank contributed."""
        reevaluated = reused.iterations % self._reevaluate_every == 0
        if reevaluated:
            reused.local_threshold = threshold(accumulated, k)
        local = Vector.of(accumulated).reaching(reused.local_threshold)
        if reused.iterations % self._repartition_every == 0:
            reused.boundaries = space_repartition(self.exchange, local, accumulated.size)
        reduced = split_and_reduce(self.exchange, local, reused.boundaries)
        if reevaluated:
            reused.global_threshold = threshold(allgatherv(self.exchange, reduced).values, k)
        update = balance_and_allgatherv(self.exchange, reduced.reaching(reused.global_threshold))
        reused.iterations += 1
        return update, np.intersect1d(local.indices, update.indices, assume_unique=True)


def threshold(values: npt.NDArray[np.float32], k: int) -> float:
    """Return the magnitude of the k-th largest value; 0 if there are no more than k."""
    return float(np.partition(np.abs(values), values.size - k)[values.size - k]) if values.size > k else 0.0


def oktopk_hook(state: OkTopkState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket with Ok-Topk: the largest elements of the sum of all ranks' largest elements.

    Use: `ddp.register_comm_hook(OkTopkState(Exchange(), ddp, ratio=0.01), oktopk_hook)`.
    """
    done: Any = torch.futures.Future()
    done.set_result(state.average(bucket))
    future: torch.futures.Future[torch.Tensor] = done
    return future
