# SPDX-License-Identifier: Apache-2.0
"""When the hooks' futures end, and how: without DDP and without a network."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from p4reduce import CollectiveTimeout
from p4reduce.continuations import Continuations
from p4reduce.ddp import AllreduceState, allreduce_hook
from p4reduce.handle import Handle

from .buckets import Bucket


class Communicator:
    """Whose collectives end when the test says so."""

    def __init__(self) -> None:
        self.continuations = Continuations("test")
        self.handles: list[Handle[torch.Tensor]] = []

    def allreduce_async(self, tensor: torch.Tensor, op: str) -> Handle[torch.Tensor]:
        engine: Any = SimpleNamespace(continuations=self.continuations, check_may_wait=lambda: None, progress=str)
        self.handles.append(Handle(tensor, f"allreduce ({op})", engine))
        return self.handles[-1]


@pytest.fixture
def communicator() -> Iterator[Any]:
    made = Communicator()
    yield made
    made.continuations.close(10)


def bucket() -> Any:
    return Bucket(torch.ones(3), [])


def test_outside_of_a_backward_pass_the_future_has_the_result(communicator: Any) -> None:
    given = bucket()
    future = allreduce_hook(AllreduceState(communicator), given)
    assert not future.done()
    communicator.handles[0].complete()
    assert future.wait() is given.buffer()


def test_outside_of_a_backward_pass_the_future_has_the_error(communicator: Any) -> None:
    future = allreduce_hook(AllreduceState(communicator), bucket())
    communicator.handles[0].complete(CollectiveTimeout("late"))
    with pytest.raises(RuntimeError, match="CollectiveTimeout: late"):  # in C++'s words
        future.wait()


def test_within_a_backward_pass_backward_raises_the_error(communicator: Any) -> None:
    futures = []

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        futures.append(allreduce_hook(AllreduceState(communicator), bucket()))
        threading.Timer(0.1, communicator.handles[0].complete, (CollectiveTimeout("late"),)).start()
        return gradient

    leaf = torch.ones(3, requires_grad=True)
    leaf.register_hook(hook)
    with pytest.raises(CollectiveTimeout, match="late"):
        leaf.sum().backward()
    assert futures[0].wait() is not None  # for DDP, which would tell of a cast that failed


def test_what_follows_a_hook_may_wait(communicator: Any) -> None:
    """As PyTorch's wrappers and PowerSGD have it."""
    state = AllreduceState(communicator)
    deeper: list[torch.Tensor] = []
    future = allreduce_hook(state, bucket()).then(lambda _: deeper.append(allreduce_hook(state, bucket()).wait()))
    communicator.handles[0].complete()
    while len(communicator.handles) < 2:
        pass
    communicator.handles[1].complete()
    future.wait()
    assert len(deeper) == 1
