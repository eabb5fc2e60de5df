# SPDX-License-Identifier: Apache-2.0
"""Tests of when and how the hooks' futures end, without DDP and without a network."""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import p4reduce.ddp
from p4reduce import CollectiveTimeout, ddp
from p4reduce.api.profiles import span
from p4reduce.ddp import (
    AllreduceState,
    BlockThresholdState,
    Int8State,
    allreduce_hook,
    block_threshold_hook,
    int8_hook,
)
from tests.support.hostlib import buckets
from tests.support.hostlib.buckets import Bucket, model


@pytest.fixture
def communicator() -> Iterator[Any]:
    made = buckets.Communicator(world_size=1)
    yield made
    made.continuations.close(10)


def bucket() -> Any:
    return Bucket(torch.ones(3), [])


def test_the_profiler_shows_a_hook_and_nobody_else_pays_for_it(communicator: Any) -> None:
    with torch.profiler.profile() as profile:
        allreduce_hook(AllreduceState(communicator), bucket())
    assert "p4reduce:allreduce_hook" in {event.name for event in profile.events()}
    communicator.handles[0].complete()
    assert isinstance(span("all_reduce"), contextlib.nullcontext)


def test_outside_of_a_backward_pass_the_future_has_the_result_or_the_error(communicator: Any) -> None:
    given = bucket()
    future, failing = (allreduce_hook(AllreduceState(communicator), one) for one in (given, bucket()))
    assert not future.done()
    communicator.handles[0].complete()
    assert future.wait() is given.buffer()
    communicator.handles[1].complete(CollectiveTimeout("late"))
    with pytest.raises(RuntimeError, match="CollectiveTimeout: late"):  # in C++'s words
        failing.wait()


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


@pytest.mark.parametrize(
    ("make", "hook"),
    [
        (Int8State, int8_hook),
        (lambda made, module: BlockThresholdState(made, module, threshold=0, wire="int16"), block_threshold_hook),
    ],
    ids=["int8", "threshold"],
)
@pytest.mark.parametrize("default", ["cpu", "meta"])
def test_what_the_wire_has_no_digits_for_is_added_to_the_next_gradient(
    make: Any, hook: Any, default: str, communicator: Any
) -> None:
    """This holds for any default device of torch."""
    module = model(a=(3,), b=(2,))
    state = make(communicator, module)
    sent = torch.zeros(5)
    gradient = torch.tensor([0.25, 1.5, -3.375, 0.0, 0.75])
    for step in range(1, 8):
        given = Bucket(gradient.clone(), list(module.parameters()))
        with torch.device(default):
            future = hook(state, given)
        communicator.handles[-1].complete()
        sent += future.wait()
        kept = torch.cat(list(state.state_dict()["residuals"].values()))
        assert torch.equal(sent + kept, step * gradient)
        assert kept.abs().max() <= 0.5


def test_what_int8_has_no_digits_for_waits_until_its_block_has_a_gradient_again(communicator: Any) -> None:
    """Else every row of a table that ever had one would be sent in each iteration from then on."""
    module = model(a=(3 * 256,))
    state = Int8State(communicator, module)  # type: ignore[arg-type]

    def sent(*blocks: float) -> list[list[float]]:
        gradient = torch.tensor(blocks)[:, None].repeat(1, 256)
        future = int8_hook(state, Bucket(gradient.view(-1), list(module.parameters())))  # type: ignore[arg-type]
        communicator.handles[-1].complete()
        return future.wait().view(3, 256).tolist()

    def blocks(*values: float) -> list[list[float]]:
        return [[value] * 256 for value in values]

    assert sent(1.25, 2.4, 0.0) == blocks(1, 2, 0)
    assert sent(0.0, 2.4, 0.25) == blocks(0, 3, 0)  # of the first block, the 0.25 that are kept stay where they are
    assert state.stats().blocks_sent == 2 + 2
    kept = state.state_dict()["residuals"]["a"].view(3, 256)
    assert torch.allclose(kept, torch.tensor(blocks(0.25, -0.2, 0.25)))
    assert sent(0.5, 0.0, 0.0) == blocks(1, 0, 0)


@pytest.mark.parametrize("value", [1e-23, 1e-44])
def test_int8_sends_gradients_whose_squares_are_zero(value: float, communicator: Any) -> None:
    module = model(a=(300,))
    state = Int8State(communicator, module, error_feedback=False)  # type: ignore[arg-type]
    gradient = torch.full((300,), value)
    given: Any = Bucket(gradient.clone(), list(module.parameters()))
    assert torch.equal(state.sparsify(given), gradient)


def test_without_error_feedback_and_in_wide_words_there_are_no_residuals(communicator: Any) -> None:
    module = model(a=(3,))
    states: Any = (
        (int8_hook, Int8State(communicator, module, error_feedback=False)),  # type: ignore[arg-type]
        (block_threshold_hook, BlockThresholdState(communicator, module, threshold=0)),  # type: ignore[arg-type]
    )
    for hook, state in states:
        given = Bucket(torch.tensor([0.25, 1.5, 2.0]), list(module.parameters()))
        future = hook(state, given)
        communicator.handles[-1].complete()
        assert future.wait().tolist() == [0.25, 1.5, 2.0]
        assert not any(kept.any() for kept in state.state_dict()["residuals"].values())


@pytest.mark.parametrize("hook", [allreduce_hook, block_threshold_hook])
def test_a_hook_with_the_state_of_another(hook: Any, communicator: Any) -> None:
    """The hook would do what the other one does, so it refuses the state."""
    state = Int8State(communicator, model(a=(3,)))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=f"state of {hook.__name__} is a Int8State, which is for int8_hook"):
        hook(state, bucket())
    with pytest.raises(TypeError, match=f"state of {hook.__name__} is a NoneType: see"):
        hook(None, bucket())
    assert communicator.handles == []


def test_what_follows_a_hook_may_wait(communicator: Any) -> None:
    """A callback of a hook's future may wait for another hook, as PyTorch's wrappers and PowerSGD do."""
    state = AllreduceState(communicator)
    deeper: list[torch.Tensor] = []
    future = allreduce_hook(state, bucket()).then(lambda _: deeper.append(allreduce_hook(state, bucket()).wait()))
    communicator.handles[0].complete()
    while len(communicator.handles) < 2:
        pass
    communicator.handles[1].complete()
    future.wait()
    assert len(deeper) == 1


@pytest.mark.parametrize(
    ("make", "hook"),
    [
        (Int8State, int8_hook),
        (lambda made, module: BlockThresholdState(made, module, threshold=0), block_threshold_hook),
    ],
)
def test_a_sparse_gradient_is_refused_by_name(communicator: Any, make: Any, hook: Any) -> None:
    given: Any = Bucket(torch.eye(4).to_sparse(), [])
    with pytest.raises(
        TypeError, match=rf"sparse gradient.*and {hook.__name__} does not accept it: use allreduce_hook"
    ):
        hook(make(communicator, model(a=(4, 4))), given)


def test_what_is_no_communicator_and_a_class_in_the_place_of_a_state_are_refused() -> None:
    with pytest.raises(TypeError, match=r"communicator is a str: accepted is a p4reduce\.Communicator"):
        AllreduceState("127.0.0.1:7700")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="state of allreduce_hook is a type"):
        allreduce_hook(AllreduceState, bucket())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", [name for name in p4reduce.ddp.__all__ if name.endswith("_hook") and name != "noop_hook"]
)
def test_a_place_for_hooks_of_fsdp_is_told_from_ddps(name: str, communicator: Any) -> None:
    hook, state, gradient = getattr(p4reduce.ddp, name), AllreduceState(communicator), torch.ones(4)
    for given in [(state, gradient, torch.ones(2)), (state, gradient), (gradient,)]:
        with pytest.raises(TypeError, match=f"^{name} is a hook of DistributedDataParallel.*Tensor.*frameworks.md$"):
            hook(*given)


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
@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (2, "communicator has 2 ranks, and DDP's process group has 1: pass"),
        (1, r"ranks of several DDP process groups: .*, which is \[0\]"),
    ],
)
def test_other_ranks_than_ddps(network: Any, hook: str, ranks: int, message: str) -> None:
    given = buckets.Communicator(world_size=ranks)
    given.all_gather = lambda own: np.stack([own + 1])
    network.register_comm_hook(HOOKS[hook](given, network), getattr(ddp, hook))
    with pytest.raises(ValueError, match=message):
        network(torch.ones(1, 2)).backward()


def test_they_are_asked_once_a_communicator(network: Any) -> None:
    asked: list[Any] = []

    def gather(own: Any) -> Any:
        asked.append(own)
        return np.stack([own])

    given, other = buckets.Communicator(world_size=1), buckets.Communicator(world_size=1)
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
    """The process group of the other module is compared at its own first bucket."""
    given = buckets.Communicator(world_size=1)
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
        ddp.allreduce_hook(ddp.AllreduceState(buckets.Communicator()), given)  # type: ignore[arg-type]
