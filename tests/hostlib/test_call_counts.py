# SPDX-License-Identifier: Apache-2.0
"""Python functions of this package that one call enters: they take most of the time of a small collective."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import p4reduce
from p4reduce.ddp import AllreduceState, allreduce_hook
from tests.support.hostlib.fake_session import FakeController
from tests.support.hostlib.in_process import Join

PACKAGE = str(Path(p4reduce.__file__).parent)


def frames_of(call: Callable[[], object]) -> list[str]:
    """Make a call, and return the functions of the package that it enters in this thread."""
    entered: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            entered.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}")

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


def least_of(call: Callable[[Any], object], make: Callable[[], Any]) -> list[str]:
    """Return the functions that a call enters, for the call of several that enters the fewest.

    The first call prepares the others, and another thread may report the end of some.
    """
    calls = [frames_of(partial(call, given)) for given in [make() for _ in range(6)]]
    return min(calls[1:], key=len)


@pytest.fixture(autouse=True)
def _c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_BACKEND", "c")
    monkeypatch.setenv("P4REDUCE_LOCAL", "off")


def rows() -> torch.Tensor:
    numbers = torch.arange(0, 4000, 3)[None]
    return torch.sparse_coo_tensor(numbers, torch.ones(numbers.shape[1], 4), (4000, 4)).coalesce()


@pytest.mark.parametrize(
    ("make", "most"),
    [(lambda: np.ones(16, np.float32), 8), (lambda: torch.ones(1024), 9), (rows, 90)],
    ids=["NumPy", "torch", "COO"],
)
def test_an_allreduce(join: Join, make: Callable[[], Any], most: int) -> None:
    [alone] = join(1)
    frames = least_of(alone.allreduce, make)
    assert len(frames) <= most, frames


@pytest.fixture
def group(controller: FakeController) -> Iterator[None]:
    assert controller is not None
    dist.init_process_group("p4reduce", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_an_all_reduce_of_the_backend() -> None:
    frames = least_of(dist.all_reduce, lambda: torch.ones(1024))
    assert len(frames) <= 40, frames


@pytest.mark.usefixtures("group")
def test_a_hook(join: Join) -> None:
    [alone] = join(1)
    network = DistributedDataParallel(torch.nn.Linear(8, 8, bias=False))
    calls: list[list[str]] = []

    def hook(state, bucket):  # type: ignore[no-untyped-def] # DDP looks at annotations
        futures: list[torch.futures.Future[torch.Tensor]] = []
        calls.append(frames_of(lambda: futures.append(allreduce_hook(state, bucket))))
        return futures[0]

    network.register_comm_hook(AllreduceState(alone), hook)
    for _ in range(6):
        network(torch.ones(1, 8)).sum().backward()
    frames = min(calls[1:], key=len)
    assert len(frames) <= 40, frames
