# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="empty-body"
"""DDP communication hooks that reduce gradient buckets on the switch.

A bucket's reduction starts when DDP calls the hook, and the next bucket's streams behind it, while the backward pass
goes on. Errors of the communicator (a rank that went, a time-out) are raised by `backward()`; outside of a backward
pass, as for a rank that has no more inputs under `Join`, by the future.

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
    """Make of a hook's signature and docstring one that averages buckets as its state says.

    Says so where another than DDP calls it: FSDP gives a gradient and a place for its shard, FSDP2 a shard alone.
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
    """Average the bucket over all ranks: blocks that hold only zeros are not sent.

    An average is exact to 2^(h - 30) of the largest magnitude in its block, over all ranks, with h = ceil(log2(ranks)):
    what is much smaller than its neighbours becomes zero. Of float16 and bfloat16, and of float32 where the state's
    `wire` is "int16", to 2^(h - 14). A NaN or an infinity makes its whole block NaN.

    Use: `model.register_comm_hook(AllreduceState(communicator), allreduce_hook)`.
    """


@_hook
def block_topk_hook(state: BlockTopKState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average what is left of the bucket when each rank sends its largest blocks only: see `BlockTopKState`.

    Use: `ddp.register_comm_hook(BlockTopKState(communicator, ddp, ratio=0.01), block_topk_hook)`.
    """


@_hook
def element_topk_hook(state: ElementTopKState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average what is left of the bucket when each rank sends its largest elements only: see `ElementTopKState`.

    The backward pass waits until the ranks know which elements each other has.

    Use: `ddp.register_comm_hook(ElementTopKState(communicator, ddp, ratio=0.01), element_topk_hook)`.
    """


@_hook
def block_threshold_hook(state: BlockThresholdState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average what is left of the bucket when each rank sends its blocks above a norm: see `BlockThresholdState`.

    Use: `ddp.register_comm_hook(BlockThresholdState(communicator, ddp, threshold=0.1), block_threshold_hook)`.
    """


@_hook
def block_randomk_hook(state: BlockRandomKState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average what is left of the bucket when all ranks send the same random blocks only: see `BlockRandomKState`.

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
    """PyTorch's `bf16_compress_wrapper`, on CPUs as well: DDP knows that by its name, and takes it for NCCL's alone."""
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
        # each bucket queues a callback with autograd, which runs before DDP's own: it raises what went wrong.
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
    """Waits for a bucket when a backward pass has come to its end.

    An exception that leaves the pass before, as a signal's handler may raise one in any code of Python's, has autograd
    drop its callbacks uncalled. The bucket is then the program's again.
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
    """DDP calls hooks outside of a backward pass for ranks that have no more inputs (`Join`)."""
    return torch._C._current_graph_task_id() != -1
