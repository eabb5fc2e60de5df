# SPDX-License-Identifier: Apache-2.0
"""What the DDP hooks work with: knobs, what they remember, and statistics."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._C._distributed_c10d import GradBucket

from p4reduce import settings
from p4reduce.api.communicator import Communicator
from p4reduce.collectives.plan import nothing
from p4reduce.ddp.parameters import Parameters
from p4reduce.ddp.ranks import CheckedRanks
from p4reduce.ddp.residuals import Residuals
from p4reduce.engine.handle import Handle
from p4reduce.errors import P4ReduceError
from p4reduce.tensors.spec import WireChoice

_VERSION = 2  # of state_dict


class AllreduceState:
    """What `allreduce_hook` works with.

    communicator: reduces the buckets; its ranks must be those of DDP's process group. It belongs to its process and is
        not pickled: a state that was needs its attribute `communicator` set again.
    wire: how gradients travel, as of `Communicator.allreduce`; by default the communicator's.
    """

    hook = "allreduce_hook"
    """The name of the hook that works with it."""

    def __init__(self, communicator: Communicator, *, wire: WireChoice | None = None) -> None:
        if not hasattr(communicator, "allreduce_async"):
            raise TypeError(f"communicator is a {type(communicator).__name__}: accepted is a p4reduce.Communicator")
        self.communicator: Communicator | None = communicator
        self.wire: WireChoice | None = wire if wire is None else settings.wire(wire)
        self._ranks = CheckedRanks()

    def check_ranks(self, bucket: GradBucket) -> None:
        """Raise ValueError where DDP's process group has other ranks than the communicator. All ranks call it before
        each bucket."""
        self._ranks.check(self, bucket.parameters(), self._joined(), self._share())

    def _share(self) -> int:
        """How many ranks of DDP's group each rank of the communicator stands for."""
        return 1

    def start(self, bucket: GradBucket) -> tuple[Handle[torch.Tensor], Callable[[], None]]:
        """Start to average the bucket over the ranks, in place. With what is to be done when that went well."""
        return self._joined().allreduce_async(bucket.buffer(), op="average", wire=self.wire), nothing

    def _joined(self) -> Communicator:
        if self.communicator is None:
            raise P4ReduceError("this state was pickled without its communicator: set its attribute communicator")
        return self.communicator

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "communicator": None, "_ranks": CheckedRanks()}


@dataclass(frozen=True)
class SparsifierStats:
    """What a rank's sparsifier has done since it was made, also before a checkpoint. What crossed the network stands in
    the communicator's `stats()`."""

    iterations: int
    blocks: int
    """In all buckets, zero or not."""
    blocks_sent: int
    """Those of them that had a value other than zero when they were handed to the communicator."""
    residual_norm: float
    """The l2 norm of what this rank has yet to send; 0 without error feedback."""
    seconds: float
    """Spent in the hook: on error feedback and on choosing."""

    @property
    def density(self) -> float:
        """Share of blocks sent."""
        return self.blocks_sent / self.blocks if self.blocks else 0.0


class SparsifierState(AllreduceState):
    """What all hooks share that send only some blocks of each bucket.

    communicator: as of `AllreduceState`. Its blocks are those among which is chosen, so that what is not chosen is not
        sent: `values_per_block` consecutive values of a bucket (64 of int32, 128 of int16, 256 of int8, as many as
        OmniReduce's have).
    model: that DDP trains, wrapped or not: what was not sent is kept by parameter.
    start_iteration: of the backward passes that reduce, the first that leaves blocks out; earlier ones send all, for
        gradients change fastest at the start.
    error_feedback: keep what was not sent, be it whole blocks or what int16 and int8 have no digits for, and add it to
        the next gradient. Without it, it is lost.
    wire: as of `AllreduceState`.

    Blocks with a NaN or an infinity are always sent, so that all ranks see them. To go on from a checkpoint, save every
    rank's `state_dict` with the model. In a state that was pickled, set `communicator` and `model` again.
    """

    def __init__(
        self,
        communicator: Communicator,
        model: torch.nn.Module,
        *,
        start_iteration: int = 0,
        error_feedback: bool = True,
        wire: WireChoice | None = None,
    ) -> None:
        super().__init__(communicator, wire=wire)
        if not isinstance(start_iteration, int) or start_iteration < 0:
            raise ValueError(f"start_iteration={start_iteration!r}: must be an integer of 0 or more")
        self.start_iteration = start_iteration
        self.error_feedback = error_feedback
        self.iteration = 0
        """Backward passes that have been reduced."""
        self._residuals = Residuals()
        self.model = model
        self._blocks = 0
        self._blocks_sent = 0
        self._seconds = 0.0

    @property
    def model(self) -> torch.nn.Module | None:
        """That DDP trains; None in a state that was pickled."""
        return self._model

    @model.setter
    def model(self, model: torch.nn.Module) -> None:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"model is a {type(model).__name__}: accepted is the torch.nn.Module that DDP trains")
        self._model: torch.nn.Module | None = model
        self._residuals.parameters = Parameters(model)

    _by_elements = False
    """Whether elements are chosen, each a block of its own."""
    _order = 2.0
    """Of the norms by which blocks are chosen; math.inf tells the smallest values from zero, too."""

    def start(self, bucket: GradBucket) -> tuple[Handle[torch.Tensor], Callable[[], None]]:
        communicator, wire = self._joined(), self._form()
        check_dense_bucket(bucket, self.hook)
        buffer = self.sparsify(bucket)
        if self._by_elements:
            return communicator.allreduce_async(buffer, op="average", wire=wire, layout="elements"), nothing
        lost = None
        if self.error_feedback and communicator.values_per_block(buffer, wire) != communicator.block_size:
            lost = torch.zeros(buffer.numel(), dtype=torch.float32, device="cpu")
        handle = communicator.allreduce_async(buffer, op="average", wire=wire, residual=lost)
        return handle, nothing if lost is None else partial(self._residuals.put_back, lost, bucket.parameters())

    def sparsify(self, bucket: GradBucket) -> torch.Tensor:
        """Set the bucket's blocks to zero that are not to be sent, and keep what they held; gives the buffer."""
        started = time.perf_counter()
        buffer, parameters = bucket.buffer(), bucket.parameters()
        size = self._block_size(buffer)
        if self.error_feedback:
            self._residuals.add_to(buffer, parameters)
        norms = block_norms(buffer, size, self._order)
        finite, nonzero = norms.isfinite(), norms != 0
        if self.iteration >= self.start_iteration:
            chosen = self.choose(norms, bucket) | ~finite
            clear_blocks(buffer, ~chosen, size)
            nonzero &= chosen
        if self.error_feedback:
            self._residuals.take(buffer, parameters, finite=bool(finite.all()))
        self._blocks += norms.numel()
        self._blocks_sent += int(nonzero.count_nonzero())
        self._seconds += time.perf_counter() - started
        if bucket.is_last():
            self.iteration += 1
        return buffer

    def choose(self, norms: torch.Tensor, bucket: GradBucket) -> torch.Tensor:
        """Which blocks to send: bool, shape (blocks,). `norms`: of each block, float32."""
        raise NotImplementedError

    def stats(self) -> SparsifierStats:
        """What was done so far."""
        return SparsifierStats(
            iterations=self.iteration,
            blocks=self._blocks,
            blocks_sent=self._blocks_sent,
            residual_norm=self._residuals.norm(),
            seconds=self._seconds,
        )

    def _form(self) -> WireChoice | None:
        """How this iteration's gradients travel."""
        return self.wire

    def _block_size(self, buffer: torch.Tensor) -> int:
        communicator = self._joined()
        return 1 if self._by_elements else communicator.values_per_block(buffer, self._form())

    def state_dict(self) -> dict[str, Any]:
        """What this rank's state remembers: tensors and plain values, which `torch.load(weights_only=True)` takes.

        Each rank has its own. Knobs are not in it.
        """
        communicator = self._joined()
        return {
            "version": _VERSION,
            "hook": self.hook,
            "rank": communicator.rank,
            "world_size": communicator.world_size,
            "iteration": self.iteration,
            "blocks": self._blocks,
            "blocks_sent": self._blocks_sent,
            "seconds": self._seconds,
            "residuals": self._residuals.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the state was that gave `state`: of this rank, among as many; buckets may be others.

        Raises ValueError where they differ: what ranks that are gone had yet to send would be lost unseen.
        """
        communicator = self._joined()
        if not isinstance(state, Mapping):
            raise TypeError(f"state is a {type(state).__name__}: accepted is the result of state_dict()")
        if state.get("version") != _VERSION:
            raise ValueError(f"state has version {state.get('version')!r}: accepted is {_VERSION}")
        if state.get("hook") != self.hook:
            raise ValueError(f"state was saved for the hook {state.get('hook')}: accepted is a state of {self.hook}")
        missing = self.state_dict().keys() - state.keys()
        if missing:
            raise ValueError(f"state lacks {', '.join(sorted(missing))}: accepted is the whole result of state_dict()")
        for name in ("iteration", "blocks", "blocks_sent"):
            settings.integer(name, state[name], 0, 1 << 62)
        saved, here = (state["rank"], state["world_size"]), (communicator.rank, communicator.world_size)
        if saved != here:
            raise ValueError(
                f"state was saved by rank {saved[0]} of {saved[1]}, and this is rank {here[0]} of {here[1]}: load each "
                "rank's own state, or start without one, which loses the values not sent yet"
            )
        self._residuals.load_state_dict(state["residuals"])
        self.iteration = state["iteration"]
        self._blocks, self._blocks_sent, self._seconds = state["blocks"], state["blocks_sent"], state["seconds"]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_model": None}


class Int8State(SparsifierState):
    """What `int8_hook` works with: gradients travel as int8, a quarter of float32's bytes, and what their rounding
    loses is added to the next ones, as 1-bit SGD does (Seide et al., Interspeech 2014).

    start_iteration: of the backward passes that reduce, the first that goes as int8; earlier ones go as int32.
    error_feedback: keep what rounding loses. Without it, it is lost, though to both sides alike: int8 rounds by chance.
    The rest is as of `SparsifierState`, but that every block is sent whose gradient is not zero. What is kept of others
    waits until they have one again: a table's gradient stays as sparse as it is.
    """

    hook = "int8_hook"
    _order = math.inf

    def __init__(
        self,
        communicator: Communicator,
        model: torch.nn.Module,
        *,
        start_iteration: int = 0,
        error_feedback: bool = True,
    ) -> None:
        super().__init__(
            communicator, model, start_iteration=start_iteration, error_feedback=error_feedback, wire="int8"
        )
        self._fresh: torch.Tensor | None = None  # the blocks of the bucket at hand whose gradient is not zero

    def sparsify(self, bucket: GradBucket) -> torch.Tensor:
        buffer = bucket.buffer()
        self._fresh = block_norms(buffer, self._block_size(buffer), self._order) != 0
        return super().sparsify(bucket)

    def choose(self, norms: torch.Tensor, bucket: GradBucket) -> torch.Tensor:  # noqa: ARG002
        assert self._fresh is not None
        return self._fresh

    def _form(self) -> WireChoice | None:
        return "int32" if self.iteration < self.start_iteration else self.wire


def check_dense_bucket(bucket: GradBucket, hook: str) -> None:
    """Raise TypeError for one that a hook of this name cannot reduce."""
    if bucket.buffer().is_sparse:
        raise TypeError(
            f"bucket {bucket.index()} is a sparse gradient, as Embedding(sparse=True) makes it, and {hook} does not "
            "accept it: use allreduce_hook, which sends its rows only, or make the layer with sparse=False"
        )


def block_norms(buffer: torch.Tensor, block_size: int, order: float = 2.0) -> torch.Tensor:
    """Norms of the blocks of a 1-d buffer, the last of which may be shorter: float32, shape (blocks,).

    order: 2 or math.inf, the largest magnitude, which is not 0 where squares are, as of values below 1e-23.
    """
    if block_size == 1:
        return buffer.abs().float()
    whole = buffer.numel() // block_size
    rows = buffer[: whole * block_size].view(whole, block_size)
    norms: torch.Tensor = torch.linalg.vector_norm(rows, order, dim=1, dtype=torch.float32)
    rest = buffer[whole * block_size :]
    if not rest.numel():
        return norms
    return torch.cat([norms, torch.linalg.vector_norm(rest, order, dtype=torch.float32)[None]])


def clear_blocks(buffer: torch.Tensor, mask: torch.Tensor, block_size: int) -> None:
    """Set the blocks of the mask to zero."""
    whole = buffer.numel() // block_size
    buffer[: whole * block_size].view(whole, block_size).masked_fill_(mask[:whole, None], 0)
    buffer[whole * block_size :].masked_fill_(mask[whole:], 0)
