# SPDX-License-Identifier: Apache-2.0
"""Sums whose zeros are left out by blocks or by elements, whichever takes less; and what is remembered of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from p4reduce.collectives import reductions
from p4reduce.collectives.choice import LEAST, Choices, Layout, Taken, why_blocks
from p4reduce.collectives.plan import Group
from p4reduce.collectives.sites import Key, Sites
from p4reduce.collectives.sparse import Reduction
from p4reduce.engine.handle import Handle
from p4reduce.protocol.numbers import values_per_word
from p4reduce.submit.submission import Submission
from p4reduce.tensors.dense import WORK_DTYPES, WireChoice, dtype_name, is_sparse, shape_of
from p4reduce.tensors.sparse import Elements, Rows, SparseTensor

T = TypeVar("T")
Leave = Callable[[], None]


def may_choose(tensor: Any) -> bool:
    """Whether a tensor can go by elements and is large enough: by what all ranks' tensors have in common."""
    return not is_sparse(tensor) and dtype_name(tensor) in WORK_DTYPES and math.prod(tensor.shape) >= LEAST


class Layouts:
    """Of a communicator's sums.

    op: "sum" or "average". limit: seconds. leave: called where ranks no longer agree on which operation is next.
    """

    def __init__(self, group: Group, submission: Submission, block_size: int, link: int) -> None:
        """block_size: words. link: this rank's bits a second, 0 where they are not known."""
        self.link = link
        self.sites = Sites()
        self._group, self._submission, self._block_size = group, submission, block_size
        self._choices = Choices()
        self._awaited: Handle[Any] | None = None  # a sum from which is learnt, under way

    def by_elements(self, tensor: T, op: str, factor: float, wire: WireChoice, limit: float, leave: Leave) -> Handle[T]:
        """Of a sparse tensor its rows, of a dense one its elements."""
        sparse = is_sparse(tensor)
        reduction = self._reduction(SparseTensor(tensor) if sparse else Elements(tensor), op, factor, wire)
        handle = self._submission.rows(reduction, tensor, limit, leave=leave)
        if not sparse:
            self.sites.went(_key(tensor, op, wire), wire, "elements", "asked for", reduction.estimate)
        return handle

    def by_what_takes_less(self, tensor: T, op: str, factor: float, wire: WireChoice, limit: float, leave: Leave) -> T:
        """The sum in place of a dense tensor."""
        site = _key(tensor, op, wire)
        with self._submission.turns:  # so that no other thread's call is learnt from in between
            if self._awaited is not None:
                self._awaited.exception()  # for what is learnt from it
                self._awaited = None
            if not self._choices.asks(site):
                why = self._choices.why_blocks(site)
                handle = self._by_blocks(tensor, site, factor, wire, limit)
                taken: Taken = "blocks"
                estimate = None
            else:
                reduction = self._reduction(Elements(tensor), op, factor, wire)
                by_blocks = partial(reductions.allreduce, self._group, tensor, op, factor, wire)
                agreed = partial(self._agreed, site, reduction)
                handle = self._submission.rows(reduction, tensor, limit, by_blocks, agreed=agreed, leave=leave)
                why = "so few that all came with the header" if reduction.inline else ""
                taken, estimate = _taken(reduction), reduction.estimate
        try:
            result = handle.result()
        finally:
            if handle is self._awaited and handle.done():
                self._awaited = None
        self.sites.went(site, wire, taken, why, estimate)
        return result

    def went_by_blocks(self, tensor: Any, op: str, wire: WireChoice, layout: Layout, *, residual: bool) -> None:
        """A call that did not choose. layout: what it asked for."""
        key = _key(tensor, op, wire)
        self.sites.went(key, wire, "blocks", why_blocks(layout, key.size, residual=residual))

    def _by_blocks(self, tensor: T, site: Key, factor: float, wire: WireChoice, limit: float) -> Handle[T]:
        plan = reductions.allreduce(self._group, tensor, site.op, factor, wire)
        per_word = values_per_word(site.wire)
        learn = partial(self._choices.came, site, plan.result, self._block_size * per_word, per_word)
        if plan.crossings:
            handle = self._submission.submit(plan, limit)
            handle.wait()
            learn()
            return handle
        # Learnt by the engine's thread, so that ranks do it alike where a wait is interrupted.
        plan.finish = partial(_one_after_the_other, plan.finish, learn)
        plan.finished_once = True
        self._awaited = self._submission.submit(plan, limit)
        return self._awaited

    def _agreed(self, site: Key, reduction: Reduction) -> None:
        """Before the last operation begins, so that a rank whose wait for that is interrupted knows what others do."""
        assert reduction.estimate is not None
        self._choices.chosen(site, _taken(reduction), reduction.estimate)

    def _reduction(self, rows: Rows, op: str, factor: float, wire: WireChoice) -> Reduction:
        return Reduction(self._group, rows, op, factor, wire, self._block_size, self.link)


def _taken(reduction: Reduction) -> Taken:
    """By which layout a dense tensor went, when ranks have asked each other."""
    if reduction.inline or reduction.estimate is None:
        return "elements"
    return reduction.estimate.layout


def _key(tensor: Any, op: str, wire: WireChoice) -> Key:
    """Of a dense tensor that can be added."""
    return Key.of(op, math.prod(shape_of(tensor)), dtype_name(tensor), wire)


def _one_after_the_other(first: Callable[[], object], second: Callable[[], object]) -> None:
    first()
    second()
