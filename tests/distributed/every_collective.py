# SPDX-License-Identifier: Apache-2.0
"""Every collective of torch.distributed, compared with its definition, for tensors of any dtype and place in memory.

All ranks of a group call `check`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

GAP = 77  # what lies beside a tensor's elements
HAS_ALL_TO_ALL = torch.__version__ >= "2.12"  # of lists: Gloo of 2.11 lacks it, and that of 2.13 has it
ADDED = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.uint8)
MOVED = (*ADDED, torch.int16, torch.uint16, torch.bool, torch.complex64, torch.float8_e4m3fn)
FOLDS: dict[Any, Callable[[torch.Tensor], torch.Tensor]] = {
    dist.ReduceOp.SUM: lambda all_: all_.sum(0, dtype=all_.dtype),
    dist.ReduceOp.MAX: lambda all_: all_.amax(0),
    dist.ReduceOp.MIN: lambda all_: all_.amin(0),
    dist.ReduceOp.PRODUCT: lambda all_: all_.prod(0, dtype=all_.dtype),
}
Layout = Callable[[torch.Tensor], torch.Tensor]


def column(values: torch.Tensor) -> torch.Tensor:
    """Return the values as one column of a matrix, so that they are not contiguous."""
    matrix = values.new_full((*values.shape, 2), GAP)
    matrix[..., 1] = values
    return matrix[..., 1]


def transposed(values: torch.Tensor) -> torch.Tensor:
    return values.t().contiguous().t()


def behind_an_offset(values: torch.Tensor) -> torch.Tensor:
    return torch.cat([values.new_full((3,), GAP), values.reshape(-1)])[3:].view(values.shape)


def channels_last(values: torch.Tensor) -> torch.Tensor:
    return values.reshape(1, 2, 3, -1).contiguous(memory_format=torch.channels_last)


def negated(values: torch.Tensor) -> torch.Tensor:
    return torch._neg_view(-values)


LAYOUTS: tuple[Layout, ...] = (column, transposed, behind_an_offset, channels_last, negated)


def gaps_are_whole(tensor: torch.Tensor) -> None:
    if tensor._base is not None and tensor._base.dim() > tensor.dim():
        assert tensor._base[..., 0].eq(GAP).all(), tensor._base


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of the elements in row-major order."""
    return tensor.detach().cpu().resolve_neg().contiguous().view(-1).view(torch.uint8)


def made(number: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a different matrix for each small number. Sums and products over two ranks are exact in every dtype."""
    return ((torch.arange(12).view(4, 3) * 7 + number) % 13).to(dtype)


class Case:
    """The tensors of all ranks, of one dtype, and with one layout in memory."""

    def __init__(self, group: Any, dtype: torch.dtype, layout: Layout) -> None:
        self.group, self.dtype, self.layout = group, dtype, layout
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.ranks = range(self.size)
        self.given = [made(rank, dtype) for rank in self.ranks]

    def own(self) -> torch.Tensor:
        return self.layout(self.given[self.rank])

    def outs(self) -> list[torch.Tensor]:
        return [self.layout(torch.zeros(4, 3, dtype=self.dtype)) for _ in self.ranks]

    def part(self, source: int, target: int) -> torch.Tensor:
        """Return the tensor that one rank has for another."""
        return made(10 * source + target, self.dtype)

    def parts(self) -> list[torch.Tensor]:
        """Return the tensors that this rank has for each rank."""
        return [self.layout(self.part(self.rank, target)) for target in self.ranks]

    def folded(self, fold: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Return the reduction of all that is for this rank."""
        return fold(torch.stack([self.part(source, self.rank) for source in self.ranks]))


Results = Iterator[tuple[torch.Tensor, torch.Tensor]]
"""Pairs of a result and what it must be."""


def moves(case: Case) -> Results:
    dist.broadcast(tensor := case.own(), 1, group=case.group)
    yield tensor, case.given[1]
    dist.all_gather(outs := case.outs(), case.own(), group=case.group)
    yield from zip(outs, case.given, strict=True)
    whole = case.layout(torch.cat(case.outs())) if case.layout is not channels_last else torch.cat(case.given)
    dist.all_gather_into_tensor(whole, case.own(), group=case.group)
    yield whole, torch.cat(case.given)


def reductions(case: Case) -> Results:
    for op, fold in FOLDS.items():
        total = fold(torch.stack(case.given))
        dist.all_reduce(tensor := case.own(), op, group=case.group)
        yield tensor, total
        with dist._coalescing_manager(group=case.group):
            dist.all_reduce(tensor := case.own(), op, group=case.group)
        yield tensor, total
        dist.reduce(tensor := case.own(), 1, op, group=case.group)
        yield tensor, total if case.rank == 1 else case.given[case.rank]
        dist.reduce_scatter(out := case.outs()[0], case.parts(), op, group=case.group)
        yield out, case.folded(fold)
        if case.layout is not channels_last:
            whole = case.layout(torch.cat(case.parts()))
            dist.reduce_scatter_tensor(out := case.outs()[0], whole, op, group=case.group)
            yield out, case.folded(fold)


def exchanges(case: Case) -> Results:
    """Run the collectives that Gloo always carries, and yield their results."""
    outs = case.outs()
    dist.gather(case.own(), outs if case.rank == 0 else None, group=case.group)
    yield from zip(outs, case.given, strict=True) if case.rank == 0 else ()
    dist.scatter(out := case.outs()[0], case.parts() if case.rank == 0 else None, group=case.group)
    yield out, case.part(0, case.rank)
    mine = [case.part(source, case.rank) for source in case.ranks]
    if HAS_ALL_TO_ALL:
        dist.all_to_all(outs := case.outs(), case.parts(), group=case.group)
        yield from zip(outs, mine, strict=True)
    if case.layout is not channels_last:
        out, whole = (case.layout(torch.cat(each)) for each in (case.outs(), case.parts()))
        if out.is_contiguous():
            dist.all_to_all_single(out, whole, group=case.group)
            yield out, torch.cat(mine)
        else:
            with pytest.raises(ValueError, match="must be contiguous"):
                dist.all_to_all_single(out, whole, group=case.group)
    for source in (0, None):
        if case.rank == 0:
            dist.send(case.own(), 1, group=case.group)
        elif case.rank == 1:
            dist.recv(out := case.outs()[0], source, group=case.group)
            yield out, case.given[0]


def check(
    group: Any,
    dtypes: tuple[torch.dtype, ...] = MOVED,
    layouts: tuple[Layout, ...] = LAYOUTS,
    device: str = "cpu",
) -> None:
    for dtype in dtypes:
        collectives = (moves, reductions, exchanges) if dtype in ADDED else (moves,)
        chosen: tuple[Layout, ...] = (torch.clone,)
        if dtype in (torch.float32, torch.int32, torch.float64, torch.int64):  # which represent all others
            chosen += (*layouts, (column, transposed)[dist.get_rank(group) % 2])  # at last, others at every rank
        for layout in chosen:

            def on_device(values: torch.Tensor, layout: Layout = layout) -> torch.Tensor:
                return layout(values.to(device))

            for collective in collectives:
                for result, expected in collective(Case(group, dtype, layout if device == "cpu" else on_device)):
                    what = (collective.__name__, dtype, layout, result, expected)
                    assert result.dtype == expected.dtype, what
                    assert torch.equal(bits(result), bits(expected)), what
                    gaps_are_whole(result)
