# SPDX-License-Identifier: Apache-2.0
"""DDP communication hooks that reduce gradient buckets on the switch.

A bucket's reduction starts when DDP calls the hook, and the next bucket's streams behind it, while the backward pass
goes on. Errors of the communicator (a rank that went, a time-out) are raised by `backward()`.

No `from __future__ import annotations` here: DDP inspects the hooks' annotations as objects.
"""

from collections.abc import Callable

import torch
from torch._C._distributed_c10d import GradBucket

from p4reduce.ddp.states import (
    AllreduceState,
    BlockRandomKState,
    BlockThresholdState,
    BlockTopKState,
    SparsifierState,
)
from p4reduce.handle import Handle


def allreduce_hook(state: AllreduceState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average the bucket over all ranks, without loss: blocks that hold only zeros are not sent.

    Use: `model.register_comm_hook(AllreduceState(communicator), allreduce_hook)`.
    """
    return _average(state, bucket.buffer())


def block_topk_hook(state: BlockTopKState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average what is left of the bucket when each rank sends its largest blocks only: see `BlockTopKState`.

    Use: `ddp.register_comm_hook(BlockTopKState(communicator, ddp, ratio=0.01), block_topk_hook)`.
    """
    return _average_some(state, bucket)


def block_threshold_hook(state: BlockThresholdState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average what is left of the bucket when each rank sends its blocks above a norm: see `BlockThresholdState`.

    Use: `ddp.register_comm_hook(BlockThresholdState(communicator, ddp, threshold=0.1), block_threshold_hook)`.
    """
    return _average_some(state, bucket)


def block_randomk_hook(state: BlockRandomKState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average what is left of the bucket when all ranks send the same random blocks only: see `BlockRandomKState`.

    Use: `ddp.register_comm_hook(BlockRandomKState(communicator, ddp, ratio=0.01), block_randomk_hook)`.
    """
    return _average_some(state, bucket)


def _average_some(state: SparsifierState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    return _average(state, state.sparsify(bucket))


def _average(state: AllreduceState, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done: Callable[[Handle[torch.Tensor]], object] = lambda _: future.set_result(buffer)  # noqa: E731
    state.start(buffer).add_done_callback(done)
    return future
