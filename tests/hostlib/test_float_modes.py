# SPDX-License-Identifier: Apache-2.0
"""Subnormals come out alike at all ranks, though one rank's threads drop them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from p4reduce import Communicator
from tests.support.hostlib.in_process import together

TINY = 1e-40
NUMEL = 40_000


@contextmanager
def dropping(where: bool) -> Iterator[None]:
    """Let this thread drop subnormals, if `where` is true."""
    if where and not torch.set_flush_denormal(True):
        pytest.skip("this processor keeps them always")
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def bits(result: Any) -> list[int]:
    dense = result.to_dense() if isinstance(result, torch.Tensor) else result
    found: list[int] = np.asarray(dense).view(np.uint32).tolist()
    return found


def scattered(rank: int) -> np.ndarray:
    values = np.zeros(200, np.float32)
    values[rank : rank + 3] = TINY
    return values


@pytest.mark.parametrize(
    "start",
    [
        lambda each: each.allreduce(scattered(each.rank), layout="elements"),
        lambda each: each.allreduce(scattered(each.rank), "average", layout="elements"),
        lambda each: each.allreduce(torch.from_numpy(scattered(0)).to_sparse()),
        lambda each: each.allreduce(scattered(each.rank)),
    ],
    ids=["elements", "average of elements", "sparse tensor", "blocks"],
)
def test_where_a_ranks_caller_drops_them(start: Callable[[Communicator], Any], each_pair: list[Communicator]) -> None:
    def work(each: Communicator) -> list[int]:
        with dropping(each.rank == 1):
            result = start(each)
        return bits(result)

    one, other = together(each_pair, work)
    assert one == other
    assert any(one)


@pytest.mark.parametrize("count", [3, 8, 300])
def test_few_of_float16_that_are_subnormal_there(count: int, each_pair: list[Communicator]) -> None:
    """All ranks receive so few values as float32."""
    few = np.arange(1, count + 1, dtype=np.uint16).view(np.float16)

    def work(each: Communicator) -> list[int]:
        with dropping(True):
            return [int(word) for word in each.allreduce(few.copy()).view(np.uint16)]

    for result in together(each_pair, work):
        assert result == [2 * number for number in range(1, count + 1)]


@pytest.mark.usefixtures("controller", "each_engine")
def test_where_a_ranks_maker_dropped_them() -> None:
    """New threads begin with the mode of the one that makes them."""
    with dropping(True):
        alone = Communicator(rank=0, world_size=1, timeout=20.0)
    with alone:
        tensor = torch.full((100, 2), TINY).to(torch.bfloat16)[:, 0]
        assert (alone.allreduce(np.full(100, TINY, np.float32)) > 0).all()
        assert (alone.allreduce(tensor) > 0).all()  # float32 that becomes bfloat16 in the engine's thread


@pytest.mark.usefixtures("controller")
def test_ranks_choose_alike() -> None:
    """A sum of which one rank, if it dropped them, would see few elements, and the other many."""

    def make(rank: int) -> Communicator:
        with dropping(rank == 1):
            return Communicator(rank=rank, world_size=2, timeout=20.0)

    with ThreadPoolExecutor(2) as pool:
        ranks = list(pool.map(make, range(2)))
    values = np.full(NUMEL, TINY, np.float32)
    values[::64] = 1e-37

    def work(each: Communicator) -> list[list[int]]:
        with each, dropping(each.rank == 1):
            return [bits(each.allreduce(values.copy())) for _ in range(3)]

    one, other = together(ranks, work)
    assert one == other
