# SPDX-License-Identifier: Apache-2.0
"""The allreduce of a communicator: prepared calls, the choice of a layout, and the caches of both."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from p4reduce.collectives import reductions
from p4reduce.collectives.choice import LEAST, Choices, SiteState, why_blocks
from p4reduce.collectives.plan import LAYOUTS, SUMS, Collective, Group, Plan, Taken, nothing
from p4reduce.collectives.sites import Key, Sites
from p4reduce.collectives.sparse import Reduction
from p4reduce.engine.engine import Engine, Prepared
from p4reduce.engine.handle import Handle
from p4reduce.errors import without_frames
from p4reduce.protocol.numbers import values_per_word
from p4reduce.submit.submission import Submission
from p4reduce.tensors.sparse import Elements, Rows, SparseTensor
from p4reduce.tensors.spec import WORK_DTYPES, TensorSpec
from p4reduce.tensors.staging import mark_changed

T = TypeVar("T")
Leave = Callable[[], None]

MOST_PREPARED = 256
"""Kinds of calls that are cached."""


class PreparedCall(NamedTuple):
    """A call that was prepared, for all later ones with the same dtype, size, operation, wire and layout, in place."""

    prepared: Prepared
    site: Key
    chooses: bool
    """Whether a blocking call chooses its layout."""
    why: str
    """Why other calls are sent by blocks."""


class Allreduce:
    """The allreduce of one communicator. Its methods may be called from any thread.

    call: the arguments, with the communicator's defaults in place of None. leave: called if the ranks no longer agree
        on which operation is next.
    """

    def __init__(self, engine: Engine, submission: Submission, group: Group, block_size: int, link: int) -> None:
        """Start without prepared calls. block_size: words. link: this rank's bits a second, 0 if unknown."""
        self.link = link
        self.sites = Sites()
        self._engine, self._submission, self._group, self._block_size = engine, submission, group, block_size
        self._choices = Choices()
        self._prepared: dict[tuple[Any, ...], PreparedCall] = {}

    def begin(self, tensor: T, spec: TensorSpec, call: Collective, leave: Leave, *, blocking: bool) -> Handle[T] | None:
        """Start the reduction into the tensor, and return its handle.

        A blocking call returns None when the result is there. Only a blocking call chooses its layout.
        """
        known = None
        can_be_known = call.op in SUMS and call.layout in LAYOUTS  # otherwise it may be anything, even unhashable
        if can_be_known and spec.address and call.factor == 1 and call.residual is None:
            known = self._prepared.get((spec.dtype, spec.size, call.op, call.wire, call.layout))
        if known is not None:
            with self._submission.lock:
                state = self._choices[known.site] if blocking and known.chooses else None
                if self._submission.executor.is_idle and not (state and state.asks):
                    handle = None
                    if blocking:
                        finish = self._learns(tensor, known.site, state) if state else None
                        error = self._engine.run_inline(known.prepared, tensor, call.limit, finish, spec.address)
                        if error is not None:
                            raise without_frames(error)
                        if spec.is_torch:
                            mark_changed(tensor)
                    else:
                        changed = partial(mark_changed, tensor) if spec.is_torch else nothing
                        handle = self._submission.start(known.prepared, tensor, call.limit, spec.address, changed)
                    self.sites.went(known.site, call.wire, "blocks", state.why if state else known.why)
                    return handle
        return self._begin(tensor, spec, call, leave, blocking=blocking)

    def _begin(
        self, tensor: T, spec: TensorSpec, call: Collective, leave: Leave, *, blocking: bool
    ) -> Handle[T] | None:
        """Do the same as `begin`, for a call that is not prepared."""
        if call.layout not in LAYOUTS:
            raise ValueError(f"layout={call.layout!r}: accepted are {', '.join(LAYOUTS)}")
        self._engine.check()
        if spec.is_sparse or call.layout == "elements":
            return self._by_elements(tensor, spec, call, leave, blocking=blocking)
        can_choose = spec.dtype in WORK_DTYPES and spec.size >= LEAST and call.op in SUMS
        chooses = can_choose and call.layout == "auto" and call.residual is None
        if blocking and chooses:
            with self._submission.lock:  # so that no other thread's call changes the choice meanwhile
                self._by_what_takes_less(tensor, spec, call, leave)
            return None
        plan = reductions.allreduce(self._group, tensor, spec, call)
        handle = None if blocking else self._submission.submit(plan, call.limit)
        if blocking:
            self._submission.run(plan, call.limit)
        if call.op in SUMS:
            site = _site(spec, call)
            why = why_blocks(call.layout, spec.size, residual=call.residual is not None)
            self.sites.went(site, call.wire, "blocks", why)
            self._remember(plan, spec, call, site, chooses=chooses)
        return handle

    def _by_elements(
        self, tensor: T, spec: TensorSpec, call: Collective, leave: Leave, *, blocking: bool
    ) -> Handle[T] | None:
        """Reduce the rows of a sparse tensor, or the elements of a dense one."""
        if call.residual is not None:
            raise ValueError(
                "residual of a tensor that is sent by elements: pass a residual only with a dense tensor sent by blocks"
            )
        rows: Rows = SparseTensor(tensor, spec) if spec.is_sparse else Elements(tensor, spec)
        reduction = Reduction(self._group, rows, call, self._block_size, self.link)
        handle = self._submission.agree(reduction, tensor, call.limit, leave=leave, blocking=blocking)
        if not spec.is_sparse:
            self.sites.went(_site(spec, call), call.wire, "elements", "asked for", reduction.estimate)
        return handle

    def _by_what_takes_less(self, tensor: Any, spec: TensorSpec, call: Collective, leave: Leave) -> None:
        """Reduce a dense tensor by the layout that the ranks choose."""
        site = _site(spec, call)
        state = self._choices[site]
        if not state.asks:
            plan = reductions.allreduce(self._group, tensor, spec, call)
            learns = self._learns(tensor, site, state)
            if plan.transfers:
                self._submission.run(plan, call.limit)
                learns()
            else:
                # The thread that finishes the plan learns from it, so that all ranks do, even if a wait is interrupted.
                plan.finish = partial(_one_after_the_other, plan.finish, learns)
                self._submission.run(plan, call.limit)
            self.sites.went(site, call.wire, "blocks", state.why)
            self._remember(plan, spec, call, site, chooses=True)
            return
        reduction = Reduction(self._group, Elements(tensor, spec), call, self._block_size, self.link)
        by_blocks = partial(reductions.allreduce, self._group, tensor, spec, call)
        # The choice is stored before the last operation begins. So a rank whose wait for it is interrupted has the same
        # choice as the others.
        agreed = partial(self._agreed, site, reduction)
        self._submission.agree(reduction, tensor, call.limit, by_blocks, agreed=agreed, leave=leave, blocking=True)
        why = "so few that all came with the header" if reduction.inline else ""
        self.sites.went(site, call.wire, _taken(reduction), why, reduction.estimate)

    def _remember(self, plan: Plan[Any], spec: TensorSpec, call: Collective, site: Key, *, chooses: bool) -> None:
        """Cache the prepared call for later ones like it, if it was executed in the tensor's own memory."""
        if plan.prepared is None or plan.operation is None or call.factor != 1 or call.residual is not None:
            return
        if plan.operation.data.ctypes.data == spec.address:
            if len(self._prepared) >= MOST_PREPARED:
                self._prepared.clear()
            key = (spec.dtype, spec.size, call.op, call.wire, call.layout)
            why = why_blocks(call.layout, spec.size, residual=False)
            self._prepared[key] = PreparedCall(plan.prepared, site, chooses, why)

    def _learns(self, tensor: Any, site: Key, state: SiteState) -> Callable[[], None]:
        """Return a function that updates the call site's choice from the sum, which is then in the tensor."""
        per_word = values_per_word(site.wire)
        return partial(self._choices.came, site, state, tensor, self._block_size * per_word, per_word)

    def _agreed(self, site: Key, reduction: Reduction) -> None:
        assert reduction.estimate is not None
        self._choices.chosen(site, _taken(reduction), reduction.estimate)


def _taken(reduction: Reduction) -> Taken:
    """Return the layout by which a dense tensor was reduced, after the ranks exchanged their estimates."""
    if reduction.inline or reduction.estimate is None:
        return "elements"
    return reduction.estimate.layout


def _site(spec: TensorSpec, call: Collective) -> Key:
    """Return the call site of a dense tensor that the protocol can add."""
    return Key(call.op, spec.size, spec.dtype, spec.wire(call.wire))


def _one_after_the_other(first: Callable[[], object], second: Callable[[], object]) -> None:
    first()
    second()
