# SPDX-License-Identifier: Apache-2.0
"""The systems that trainings use: each is a DDP hook with its state, and a count of the bytes that it has sent.

No `from __future__ import annotations` here: DDP inspects the hooks' annotations as objects.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from p4reduce import Communicator
from p4reduce.ddp import (
    AllreduceState,
    BlockTopKState,
    ElementTopKState,
    Int8State,
    allreduce_hook,
    block_topk_hook,
    element_topk_hook,
    int8_hook,
    noop_hook,
)
from p4reduce.ddp.recording import Hook
from p4reduce.tensors.spec import WireChoice
from p4reduce_bench.allreduce.reducers import Gloo, P4Reduce
from p4reduce_bench.peers.vectors import Exchange
from p4reduce_bench.training.oktopk import OkTopkState, oktopk_hook

Traffic = Callable[[int], dict[str, int]]
"""A function of the number of steps of a run that returns this rank's traffic so far: tx_bytes, and others."""


def bf16_hook(group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Call PyTorch's hook, under a name for which DDP does not require a GPU: Gloo adds bfloat16."""
    return bf16_compress_hook(group, bucket)


_WIRES: dict[str, WireChoice | None] = {"p4reduce": None, "p4reduce-int16": "int16"}

_STATELESS: dict[str, tuple[Hook | None, int]] = {
    "gloo": (None, 4),
    "gloo-bf16": (bf16_hook, 2),
    "gloo-fp16": (fp16_compress_hook, 2),
    "noop": (noop_hook, 0),
}
"""Hooks whose state is the default process group, and the bytes of an element that they reduce."""


@dataclass(frozen=True)
class System:
    """A system, for one run."""

    hook: Hook | None
    """The DDP hook; None: DDP's own allreduce."""
    state: Any
    traffic: Traffic


class Systems:
    """The state that all systems share: the communicator, if one needs it, and the interface that counts traffic."""

    def __init__(self, communicator: Communicator | None, options: argparse.Namespace) -> None:
        self._communicator = communicator
        self._options = options
        self._interface = Gloo(options.counted)

    def make(self, name: str, ddp: DistributedDataParallel) -> System:
        """Return a new system. With links, the interface counts the traffic; without, see `trainings.counted`."""
        made = self._ours(name, ddp) if name.startswith("p4reduce") else self._other(name, ddp)
        if self._options.counted is None:
            return made
        return System(made.hook, made.state, lambda _: self._interface.traffic())

    def _ours(self, name: str, ddp: DistributedDataParallel) -> System:
        communicator, options = self._communicator, self._options
        assert communicator is not None
        start, ratio = options.start_iteration, options.ratio
        hook: Hook
        state: AllreduceState
        if name == "p4reduce-int8":
            hook, state = int8_hook, Int8State(communicator, ddp, start_iteration=start)
        elif name == "p4reduce-topk":
            hook, state = block_topk_hook, BlockTopKState(communicator, ddp, ratio=ratio, start_iteration=start)
        elif name == "p4reduce-element-topk":
            hook, state = element_topk_hook, ElementTopKState(communicator, ddp, ratio=ratio, start_iteration=start)
        else:
            hook, state = allreduce_hook, AllreduceState(communicator, wire=_WIRES[name])
        return System(hook, state, lambda _: P4Reduce(communicator).traffic())

    def _other(self, name: str, ddp: DistributedDataParallel) -> System:
        if name == "oktopk":
            exchange = Exchange()
            state = OkTopkState(exchange, ddp, ratio=self._options.ratio, start_iteration=self._options.start_iteration)
            return System(oktopk_hook, state, lambda _: {"tx_bytes": 4 * exchange.words})
        hook, size = _STATELESS[name]
        return System(hook, None, _ring(size * sum(parameter.numel() for parameter in ddp.parameters())))


def _ring(size: int) -> Traffic:
    """Return the traffic of Gloo, a ring allreduce of so many bytes in each step."""
    ranks = dist.get_world_size()
    return lambda steps: {"tx_bytes": steps * 2 * (ranks - 1) * size // ranks}
