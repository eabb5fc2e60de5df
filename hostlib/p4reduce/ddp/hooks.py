# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="empty-body"
"""DDP communication hooks that reduce gradient buckets on the switch.

A bucket's reduction starts when DDP calls the hook. The next bucket's follows while the backward pass goes on.
`backward()` raises errors of the communicator, such as a dead rank or a time-out. Outside of a backward pass, as for a
rank without further inputs under `Join`, the future raises them.

No `from __future__ import annotations` here: DDP inspects the hooks' annotations as objects.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_wrapper

from p4reduce.api.futures import future_of
from p4reduce.api.profiles import span
from p4reduce.ddp.hierarchical import HierarchicalState
from p4reduce.ddp.recording import Hook
from p4reduce.ddp.sparsifiers import (
    BlockRandomKState,
    BlockThresholdState,
    BlockTopKState,
    ElementTopKState,
)
from p4reduce.ddp.states import AllreduceState, Int8State
from p4reduce.engine.handle import BlockingCall, Handle

Declared = TypeVar("Declared", bound=Callable[..., Any])


def _hook(declared: Declared) -> Declared:
    """Return a hook that averages buckets by its state; `declared` gives its signature and docstring.

    The hook raises TypeError if another caller than DDP is recognised: FSDP passes a gradient and a buffer for its
    shard, FSDP2 passes a shard alone.
    """

    @functools.wraps(declared)
    def hook(*given: Any, **named: Any) -> torch.futures.Future[torch.Tensor]:
        if len(given) == 2 and isinstance(given[1], GradBucket):
            return _average(declared.__name__, given[0], given[1])
        if len(given) + len(named) != 2 or any(isinstance(one, torch.Tensor) for one in given):
            raise TypeError(
                f"{declared.__name__} is a hook of DistributedDataParallel and takes (state, bucket), not "
                f"({', '.join(type(one).__name__ for one in given)}). A hook for FSDP has a few lines: see "
                "docs/frameworks.md"
            )
        if any(isinstance(one, tuple) for one in given):
            raise TypeError(
                f"{declared.__name__} was called with a gradient and its parameter, as DDP's Python reducer calls "
                "hooks. It needs buckets: set torch._dynamo.config.optimize_ddp to True or False"
            )
        return _average(declared.__name__, *given, **named)

    return cast(Declared, hook)


@_hook
def allreduce_hook(state: AllreduceState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average the bucket over all ranks; blocks of zeros are not sent.

    Averages of float32 are exact to 2^(h - 30) of the largest magnitude in the block over all ranks, with
    h = ceil(log2(ranks)): values that are much smaller than others of their block become zero. Averages of float16 and
    bfloat16, and of float32 if the state's `wire` is "int16", are exact to 2^(h - 14). A NaN or an infinity makes its
    whole block NaN.

    Use: `model.register_comm_hook(AllreduceState(communicator), allreduce_hook)`.
    """


@_hook
def block_topk_hook(state: BlockTopKState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average the bucket's largest blocks: each rank sends only its own largest ones, see `BlockTopKState`.

    Use: `ddp.register_comm_hook(BlockTopKState(communicator, ddp, ratio=0.01), block_topk_hook)`.
    """


@_hook
def element_topk_hook(state: ElementTopKState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average the bucket's largest elements: each rank sends only its own largest ones, see `ElementTopKState`.

    The backward pass waits until the ranks know each other's indices.

    Use: `ddp.register_comm_hook(ElementTopKState(communicator, ddp, ratio=0.01), element_topk_hook)`.
    """


@_hook
def block_threshold_hook(state: BlockThresholdState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average the bucket's blocks above a norm: each rank sends only its own such blocks, see `BlockThresholdState`.

    Use: `ddp.register_comm_hook(BlockThresholdState(communicator, ddp, threshold=0.1), block_threshold_hook)`.
    """


@_hook
def block_randomk_hook(state: BlockRandomKState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average random blocks of the bucket, the same on all ranks: see `BlockRandomKState`.

    Use: `ddp.register_comm_hook(BlockRandomKState(communicator, ddp, ratio=0.01), block_randomk_hook)`.
    """


@_hook
def int8_hook(state: Int8State, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average the bucket as int8, with error feedback: see `Int8State`.

    Use: `ddp.register_comm_hook(Int8State(communicator, ddp), int8_hook)`.
    """


@_hook
def hierarchical_hook(state: HierarchicalState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average the bucket within each host, and between hosts on the switch: see `HierarchicalState`.

    Use: `state = HierarchicalState.of_hosts()`, then `model.register_comm_hook(state, hierarchical_hook)`.
    """


def bf16_wrapper(hook: Hook) -> Hook:
    """Wrap a hook like PyTorch's `bf16_compress_wrapper`, but also for CPUs.

    DDP recognises PyTorch's wrapper by its name, and accepts it with NCCL only.
    """
    wrapped: Hook = bf16_compress_wrapper(hook)
    wrapped.__name__ = "bf16_wrapper"
    return wrapped


def _average(hook: str, state: AllreduceState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    given = getattr(state, "hook", None)
    if given != hook or isinstance(state, type):
        what = f", which is for {given}" if given and given != hook else ""
        raise TypeError(f"state of {hook} is a {type(state).__name__}{what}: see the hook's docstring for its state")
    state.check_ranks(bucket)
    buffer = bucket.buffer()
    with BlockingCall(), span(hook):
        handle, afterwards = state.start(bucket)
    within_backward = _within_backward()

    if within_backward:
        # DDP turns an exception in a hook's future into a misleading cast error. So such a future always succeeds, and
        # each bucket queues a callback with autograd, which runs before DDP's own and raises the error.
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(_EndOfBackward(hook, handle))

    def settle() -> torch.Tensor:
        error = handle.exception()
        if error is None:
            handle.wait_for_arrivals()
            afterwards()
        elif not within_backward:
            raise error
        return buffer

    future: torch.futures.Future[torch.Tensor] = future_of(handle, settle, [buffer])
    return future


class _EndOfBackward:
    """A callback of autograd that waits for a bucket at the end of a backward pass.

    If an exception ends the pass earlier, for example one from a signal handler, autograd drops its callbacks without
    calling them. The program may then use the bucket again, so the communicator fails.
    """

    def __init__(self, hook: str, handle: Handle[torch.Tensor]) -> None:
        self._hook, self._handle = hook, handle
        self._called = False

    def __call__(self) -> None:
        self._called = True
        try:
            with span(f"{self._hook} wait"):
                self._handle.wait()
        except BaseException as error:
            self._handle.leave(error)
            raise

    def __del__(self) -> None:
        if not self._called:
            self._handle.leave("an exception in the backward pass")


def _within_backward() -> bool:
    """Return whether a backward pass runs; DDP also calls hooks for ranks that have no more inputs (`Join`)."""
    return torch._C._current_graph_task_id() != -1
