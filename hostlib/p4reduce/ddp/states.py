# SPDX-License-Identifier: Apache-2.0
"""The states of DDP hooks: their options, residuals and statistics."""

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

_VERSION = 2  # format of state_dict


class AllreduceState:
    """The state of `allreduce_hook`.

    communicator: reduces the buckets; its ranks must be those of DDP's process group. It belongs to its process and is
        not pickled: set the attribute `communicator` again in an unpickled state.
    wire: wire type of gradients, as in `Communicator.allreduce`; by default the communicator's.
    """

    hook = "allreduce_hook"
    """The name of the hook that this state is for."""

    def __init__(self, communicator: Communicator, *, wire: WireChoice | None = None) -> None:
        if not hasattr(communicator, "allreduce_async"):
            raise TypeError(f"communicator is a {type(communicator).__name__}: accepted is a p4reduce.Communicator")
        self.communicator: Communicator | None = communicator
        self.wire: WireChoice | None = wire if wire is None else settings.wire(wire)
        self._ranks = CheckedRanks()

    def check_ranks(self, bucket: GradBucket) -> None:
        """Raise ValueError if DDP's process group has other ranks than the communicator.

        All ranks call this before each bucket, since a check is a collective of the communicator.
        """
        self._ranks.check(self, bucket.parameters(), self._joined(), self._share())

    def _share(self) -> int:
        """Return how many ranks of DDP's group each rank of the communicator stands for."""
        return 1

    def start(self, bucket: GradBucket) -> tuple[Handle[torch.Tensor], Callable[[], None]]:
        """Start to average the bucket over the ranks, in place. Returns the handle, and what to call on success."""
        return self._joined().allreduce_async(bucket.buffer(), op="average", wire=self.wire), nothing

    def _joined(self) -> Communicator:
        if self.communicator is None:
            raise P4ReduceError("this state was pickled without its communicator: set its attribute communicator")
        return self.communicator

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "communicator": None, "_ranks": CheckedRanks()}


@dataclass(frozen=True)
class SparsifierStats:
    """The statistics of a rank's sparsifier since it was made, including the time before a checkpoint.

    The communicator's `stats()` has the network traffic.
    """

    iterations: int
    blocks: int
    """Blocks of all buckets, zero or not."""
    blocks_sent: int
    """Blocks that were not zero when the communicator got them."""
    residual_norm: float
    """The l2 norm of this rank's residuals; 0 without error feedback."""
    seconds: float
    """Time in the hook, for error feedback and the choice of blocks."""

    @property
    def density(self) -> float:
        """The share of blocks that were sent."""
        return self.blocks_sent / self.blocks if self.blocks else 0.0


class SparsifierState(AllreduceState):
    """The base class of states of hooks that send only some blocks of each bucket.

    communicator: as in `AllreduceState`. The hook chooses among the communicator's blocks, so that blocks that are not
        chosen are not sent: `values_per_block` consecutive values of a bucket (64 of int32, 128 of int16, 256 of int8,
        as many as in OmniReduce).
    model: the model that DDP trains, wrapped or not; residuals are stored by parameter.
    start_iteration: index of the first backward pass that leaves blocks out, among those that reduce gradients.
        Earlier ones send all blocks, since gradients change fastest at the start.
    error_feedback: whether values that are not sent are kept and added to the next gradient: both whole blocks and
        rounding errors of int16 and int8. Otherwise they are lost.
    wire: as in `AllreduceState`.

    Blocks with a NaN or an infinity are always sent, so that all ranks see them. To go on from a checkpoint, save every
    rank's `state_dict` with the model. In an unpickled state, set `communicator` and `model` again.
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
        """Backward passes whose gradients have been reduced."""
        self._residuals = Residuals()
        self.model = model
        self._blocks = 0
        self._blocks_sent = 0
        self._seconds = 0.0

    @property
    def model(self) -> torch.nn.Module | None:
        """The model that DDP trains; None in an unpickled state."""
        return self._model

    @model.setter
    def model(self, model: torch.nn.Module) -> None:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"model is a {type(model).__name__}: accepted is the torch.nn.Module that DDP trains")
        self._model: torch.nn.Module | None = model
        self._residuals.parameters = Parameters(model)

    _by_elements = False
    """Whether the hook chooses elements, each of which is a block then."""
    _order = 2.0
    """Order of the norms by which blocks are chosen; math.inf distinguishes the smallest values from zero, too."""

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
        """Set blocks of the bucket that are not chosen to zero, keep their values, and return the buffer."""
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
            self._residuals.subtract(buffer, parameters, finite=bool(finite.all()))
        self._blocks += norms.numel()
        self._blocks_sent += int(nonzero.count_nonzero())
        self._seconds += time.perf_counter() - started
        if bucket.is_last():
            self.iteration += 1
        return buffer

    def choose(self, norms: torch.Tensor, bucket: GradBucket) -> torch.Tensor:
        """Return which blocks to send: bool, shape (blocks,). `norms`: the blocks' norms, float32."""
        raise NotImplementedError

    def stats(self) -> SparsifierStats:
        """Return the statistics so far."""
        return SparsifierStats(
            iterations=self.iteration,
            blocks=self._blocks,
            blocks_sent=self._blocks_sent,
            residual_norm=self._residuals.norm(),
            seconds=self._seconds,
        )

    def _form(self) -> WireChoice | None:
        """Return the wire type of this iteration's gradients."""
        return self.wire

    def _block_size(self, buffer: torch.Tensor) -> int:
        communicator = self._joined()
        return 1 if self._by_elements else communicator.values_per_block(buffer, self._form())

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's residuals and counts: tensors and plain values for `torch.load(weights_only=True)`.

        Each rank has its own. Options, such as `ratio`, are not part of it.
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
        """Load the result of `state_dict` of the same rank, with the same world size; buckets may differ.

        Raises ValueError if rank or world size differ, since the residuals of missing ranks would be lost silently.
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
    """The state of `int8_hook`: gradients are sent as int8, in a quarter of float32's bytes, with error feedback.

    Rounding errors are added to the next gradients, as in 1-bit SGD (Seide et al., Interspeech 2014).

    start_iteration: index of the first backward pass that is sent as int8, among those that reduce gradients. Earlier
        ones are sent as int32.
    error_feedback: whether rounding errors are kept. Otherwise they are lost, but without bias: int8 uses stochastic
        rounding.
    The other parameters are those of `SparsifierState`. Every block is sent whose gradient is not zero. The residuals
    of other blocks wait for their next gradient, so the gradient of an embedding table stays sparse.
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
        self._fresh: torch.Tensor | None = None  # which blocks of the current bucket have a gradient that is not zero

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
    """Raise TypeError if the bucket is sparse, which the hook of this name cannot reduce."""
    if bucket.buffer().is_sparse:
        raise TypeError(
            f"bucket {bucket.index()} is a sparse gradient, as Embedding(sparse=True) makes it, and {hook} does not "
            "accept it: use allreduce_hook, which sends its rows only, or make the layer with sparse=False"
        )


def block_norms(buffer: torch.Tensor, block_size: int, order: float = 2.0) -> torch.Tensor:
    """Return the norms of a 1-d buffer's blocks, of which the last may be shorter: float32, shape (blocks,).

    order: 2, or math.inf for the largest magnitude. The latter is not 0 for values below 1e-23, whose squares are 0.
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
    """Set the blocks that the mask selects to zero."""
    whole = buffer.numel() // block_size
    buffer[: whole * block_size].view(whole, block_size).masked_fill_(mask[:whole, None], 0)
    buffer[whole * block_size :].masked_fill_(mask[whole:], 0)
