# SPDX-License-Identifier: Apache-2.0
"""A communicator of other ranks than those of DDP's process group is refused, with every hook."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from p4reduce import ddp

from .buckets import Bucket, communicator


@pytest.fixture
def network() -> Iterator[Any]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield DistributedDataParallel(torch.nn.Linear(2, 1))
    dist.destroy_process_group()


HOOKS: dict[str, Any] = {
    "allreduce_hook": lambda each, _: ddp.AllreduceState(each),
    "block_topk_hook": lambda each, network: ddp.BlockTopKState(each, network),
    "hierarchical_hook": lambda each, _: ddp.HierarchicalState(each, dist.group.WORLD),
}


@pytest.mark.parametrize("hook", HOOKS)
def test_another_number_of_ranks(network: Any, hook: str) -> None:
    network.register_comm_hook(HOOKS[hook](communicator(world_size=2), network), getattr(ddp, hook))
    with pytest.raises(ValueError, match="communicator has 2 ranks, and DDP's process group has 1: pass"):
        network(torch.ones(1, 2)).backward()


@pytest.mark.parametrize("hook", HOOKS)
def test_as_many_others(network: Any, hook: str) -> None:
    given = communicator(world_size=1)
    given.all_gather = lambda own: np.stack([own + 1])
    network.register_comm_hook(HOOKS[hook](given, network), getattr(ddp, hook))
    with pytest.raises(ValueError, match=r"ranks of several DDP process groups: .*, which is \[0\]"):
        network(torch.ones(1, 2)).backward()


def test_they_are_asked_once_a_communicator(network: Any) -> None:
    asked: list[Any] = []

    def gather(own: Any) -> Any:
        asked.append(own)
        return np.stack([own])

    given, other = communicator(world_size=1), communicator(world_size=1)
    given.all_gather = other.all_gather = gather
    state = ddp.AllreduceState(given)
    network.register_comm_hook(state, ddp.allreduce_hook)
    bucket: Any = Bucket(torch.ones(3), list(network.parameters()))
    for _ in range(2):
        state.check_ranks(bucket)
    assert len(asked) == 1
    state.communicator = other
    state.check_ranks(bucket)
    assert len(asked) == 2
    assert pickle.loads(pickle.dumps(state)).communicator is None


@pytest.mark.parametrize("hook", HOOKS)
def test_another_module_with_the_same_state(network: Any, hook: str) -> None:
    """Its process group is compared at its own first bucket."""
    given = communicator(world_size=1)
    given.all_gather = lambda own: np.stack([own])
    both = torch.nn.ModuleList([network.module, torch.nn.Linear(2, 1)])
    state = HOOKS[hook](given, both)
    network.register_comm_hook(state, getattr(ddp, hook))
    state.check_ranks(Bucket(torch.ones(3), list(network.parameters())))
    other = DistributedDataParallel(both[1])
    other.register_comm_hook(state, getattr(ddp, hook))
    given.all_gather = lambda own: np.stack([own + 1])
    with pytest.raises(ValueError, match=r"ranks of several DDP process groups: .*, which is \[0\]"):
        other(torch.ones(1, 2)).backward()


def test_pythons_reducer_is_named() -> None:
    given = (torch.ones(2), torch.ones(2))
    with pytest.raises(TypeError, match="with a gradient and its parameter, as DDP's Python reducer"):
        ddp.allreduce_hook(ddp.AllreduceState(communicator()), given)  # type: ignore[arg-type]
