# SPDX-License-Identifier: Apache-2.0
"""DDP communication hooks that reduce gradient buckets on the switch.

No `from __future__ import annotations` here: DDP inspects the hooks' annotations as objects.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._C._distributed_c10d import GradBucket

from p4reduce.communicator import Communicator
from p4reduce.handle import Handle


class AllreduceState:
    """What `allreduce_hook` works with.

    communicator: reduces the buckets; its ranks must be those of DDP's process group.
    """

    __slots__ = ("_under_way", "communicator")

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self._under_way: list[Handle[torch.Tensor]] = []

    def start(self, tensor: torch.Tensor) -> Handle[torch.Tensor]:
        """Start to average `tensor` over the ranks, in place; errors are raised by the backward pass under way.

        DDP turns an exception in a hook's future into a misleading cast error. So futures always succeed, and the first
        bucket of a backward pass queues a callback with autograd, which runs before DDP's own: it waits for every
        bucket and raises what went wrong.
        """
        if not self._under_way:
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._finish)
        handle = self.communicator.allreduce_async(tensor, op="average")
        self._under_way.append(handle)
        return handle

    def _finish(self) -> None:
        handles = list(self._under_way)
        self._under_way.clear()
        for handle in handles:
            handle.wait()


def allreduce_hook(state: AllreduceState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average the bucket over all ranks, without loss: blocks that hold only zeros are not sent.

    Use: `model.register_comm_hook(AllreduceState(communicator), allreduce_hook)`. Errors of the communicator (a rank
    that went, a time-out) are raised by `backward()`.
    """
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    buffer = bucket.buffer()
    done: Callable[[Handle[torch.Tensor]], object] = lambda _: future.set_result(buffer)  # noqa: E731
    state.start(buffer).add_done_callback(done)
    return future
