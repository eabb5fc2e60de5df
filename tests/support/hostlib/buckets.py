# SPDX-License-Identifier: Apache-2.0
"""Fakes of DDP's gradient buckets, and of a communicator without a network, for tests of hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from p4reduce.engine.continuations import Continuations
from p4reduce.engine.handle import Handle

BLOCK = 64


@dataclass
class Bucket:
    """The gradients of some parameters in one buffer, each in the memory order of its parameter."""

    data: torch.Tensor
    of: list[torch.Tensor]
    number: int = 0
    last: bool = True

    def buffer(self) -> torch.Tensor:
        return self.data

    def parameters(self) -> list[torch.Tensor]:
        return self.of

    def index(self) -> int:
        return self.number

    def is_last(self) -> bool:
        return self.last


class Communicator:
    """A communicator whose collectives end when the test ends their handles.

    If there is a residual, it rounds values to integers and leaves the rest in the residual.
    """

    def __init__(self, rank: int = 0, world_size: int = 2) -> None:
        self.rank, self.world_size, self.block_size = rank, world_size, BLOCK
        self.continuations = Continuations("test")
        self.handles: list[Handle[torch.Tensor]] = []

    def values_per_block(self, _: torch.Tensor, wire: str | None) -> int:
        return {None: BLOCK, "int16": 2 * BLOCK, "int8": 4 * BLOCK}[wire]

    def allreduce_async(
        self, tensor: torch.Tensor, op: str, wire: str | None, residual: torch.Tensor | None = None
    ) -> Handle[torch.Tensor]:
        assert wire is None or wire.startswith("int")
        if residual is not None:
            residual.copy_(tensor - tensor.round())
            tensor.round_()
        engine: Any = SimpleNamespace(
            continuations=self.continuations, check_may_wait=lambda: None, progress=str, handles=set()
        )
        self.handles.append(Handle(tensor, f"allreduce ({op})", engine))
        return self.handles[-1]


def model(**shapes: tuple[int, ...]) -> torch.nn.Module:
    """Return a module with parameters of these shapes, all zero."""
    made = torch.nn.Module()
    for name, shape in shapes.items():
        made.register_parameter(name, torch.nn.Parameter(torch.zeros(shape)))
    return made


def in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return a flat view of a dense tensor in the order of its memory."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def step(
    state: Any,
    parameters: Mapping[str, torch.Tensor],
    gradients: Mapping[str, torch.Tensor],
    buckets: Sequence[Sequence[str]],
    dtype: torch.dtype = torch.float32,
) -> dict[str, torch.Tensor]:
    """Pass the gradients of a backward pass through `state`, and return what is sent of each.

    buckets: the names of the parameters in each bucket, in order.
    """
    sent = {}
    for number, names in enumerate(buckets):
        flat = torch.cat([in_memory_order(gradients[name]) for name in names]).to(dtype)
        bucket: Any = Bucket(flat, [parameters[name] for name in names], number, number == len(buckets) - 1)
        with torch.no_grad():
            buffer = state.sparsify(bucket)
        for name, part in zip(names, buffer.split([parameters[name].numel() for name in names]), strict=True):
            sent[name] = torch.empty_like(parameters[name], dtype=dtype, requires_grad=False)
            in_memory_order(sent[name]).copy_(part)
    return sent
