# SPDX-License-Identifier: Apache-2.0
"""One allreduce, as its caller sees it and as the worker prepares it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from p4reduce.errors import UnsupportedDtype
from p4reduce.protocol.blocks import Blocks
from p4reduce.protocol.fingerprint import fingerprint
from p4reduce.protocol.gather import Gather, fits
from p4reduce.protocol.halves import type_name
from p4reduce.protocol.membership import Membership
from p4reduce.protocol.numbers import SUPPORTED, WIRES, Int32Numbers, Numbers, Wire
from p4reduce.protocol.scanning import Scanning

Zeros: TypeAlias = Literal["skipped", "first", "sent"]
ZEROS: tuple[Zeros, ...] = get_args(Zeros)


class Operation:
    """One allreduce of a flat array, whose contents are replaced by the sum over all ranks.

    `data`: 1-d and C-contiguous, writable unless `read_only`. Its dtype is float32, int32, float16, or uint16 for the
    bits of bfloat16. No other code may touch it until `done`. After an error its contents are undefined.

    `dtype` names the caller's dtype, for example "bfloat16" that is carried as float32; None means that of `data`.
    `reduce_op` names the reduction. `wire` is the form of values in words; int32 values are sent unchanged. Ranks must
    agree on all three, and on the number of elements.

    `divisor`: divides the sums of floats, for an average, as float32.

    `residual`: float32, of the same shape as `data`. When a block is sent, the part of its values that the wire cannot
    represent is written here. Blocks that are not sent leave it unchanged.

    `read_only`: this rank adds `data` and never writes to it, because its memory may be read-only. Only the other ranks
    get the sum.

    `zeros`: how this rank's blocks of zeros are treated. "skipped": they are not sent. "first": the first block of each
    stream is sent as if it were not zero. "sent": all are sent. The sums are the same, and ranks need not agree.
    """

    def __init__(
        self,
        data: npt.NDArray[Any],
        *,
        dtype: str | None = None,
        reduce_op: str = "sum",
        divisor: int = 1,
        wire: Wire = "int32",
        residual: npt.NDArray[np.float32] | None = None,
        read_only: bool = False,
        zeros: Zeros = "skipped",
    ) -> None:
        if data.dtype not in SUPPORTED:
            raise UnsupportedDtype(
                f"data has dtype {data.dtype}: supported are native float32, int32, float16, and uint16 for bfloat16"
            )
        if data.ndim != 1 or not data.flags.c_contiguous or not (read_only or data.flags.writeable):
            raise ValueError(
                f"data has shape {data.shape}, strides {data.strides}, writable {data.flags.writeable}: accepted is a "
                "writable C-contiguous array of one dimension"
            )
        if wire not in WIRES or (data.dtype == np.int32 and wire != "int32"):
            raise ValueError(f"wire={wire!r} of {data.dtype}: accepted are {', '.join(WIRES)}, of int32 only int32")
        if data.dtype == np.int32 and divisor != 1:
            raise ValueError(f"divisor={divisor!r} of int32, whose sums are not divided: accepted is 1")
        if residual is not None and not (
            data.dtype == residual.dtype == np.float32 and data.shape == residual.shape and residual.flags.carray
        ):
            raise ValueError(
                f"residual has dtype {residual.dtype} and shape {residual.shape}: accepted is a writable C-contiguous "
                f"float32 array of shape {data.shape}, for float32 data"
            )
        if zeros not in ZEROS:
            raise ValueError(f"zeros={zeros!r}: accepted are {', '.join(ZEROS)}")
        self.data = data
        self.dtype = dtype or type_name(data.dtype)
        self.reduce_op = reduce_op
        self.divisor = divisor
        self.wire = wire
        self.residual = residual
        self.read_only = read_only
        self.zeros = zeros
        self.done = False
        self.error: BaseException | None = None
        self.on_done: Callable[[Operation], None] | None = None

    def __repr__(self) -> str:
        return f"<{self.reduce_op} of {self.data.size} {self.numbers}>"

    @property
    def numbers(self) -> str:
        """The dtype, "bfloat16", or with the wire, "bfloat16:int16", if words carry more than one value."""
        return self.dtype if self.wire == "int32" else f"{self.dtype}:{self.wire}"

    def finish(self, error: BaseException | None = None) -> None:
        """End the operation, with success or an error. Only the worker calls this."""
        self.error = error
        self.done = True
        if self.on_done is not None:
            self.on_done(self)


class Task:
    """An operation under way, and what is left to send of it."""

    def __init__(self, operation: Operation, counter: int, membership: Membership, numbers: Numbers) -> None:
        self.operation = operation
        self.counter = counter
        self.fingerprint = fingerprint(counter, operation.numbers, operation.reduce_op, operation.data.size)
        self.seed = self.fingerprint | membership.rank
        gathers = fits(operation.data, membership)
        self.gather = Gather(operation.data, operation.residual, membership) if gathers else None
        # Words of the operation's own values, or of the gather of all ranks' values.
        self.numbers = numbers if self.gather is None else Int32Numbers()
        data = operation.data if self.gather is None else self.gather.words
        residual = operation.residual if self.gather is None else None
        self.blocks = Blocks(data, membership.block_size * self.numbers.per_word)
        self.residual = None if residual is None else Blocks(residual, self.blocks.block_size)
        # Integers need no agreed exponent: the first round carries values, and is the only one.
        self.at_once = data.dtype == np.int32 and self.blocks.count <= membership.lanes
        self.scanning = Scanning(
            self.blocks,
            slots=membership.slots,
            lanes=membership.lanes,
            zeros_sent={"skipped": 0, "first": 1, "sent": self.blocks.count}[operation.zeros],
            read_only=operation.read_only,
        )
        # At least one slot, so that an empty tensor is announced too, and a rank with another shape gets an error.
        self.slots = max(1, min(membership.slots, -(-self.blocks.count // membership.lanes)))
        self.slots_left = self.slots

    def quantise(self, blocks: list[int], exponents: list[int], announced: list[int]) -> npt.NDArray[np.int32]:
        """Return the words of some blocks for a packet, and write their residual.

        announced: positions in `blocks` of those that this rank announced. The others are zeros that fill the packet.
        """
        values = self.blocks.gather(blocks)
        words = self.numbers.quantise(values, exponents, blocks, self.seed)
        if self.residual is not None and announced:
            left = values - self.numbers.dequantise(words, exponents)
            left[~np.isfinite(left)] = 0  # nothing is left of values whose sum is infinite or NaN
            self.residual.scatter([blocks[position] for position in announced], left[announced])
        return words

    def dequantise(self, blocks: list[int], exponents: list[int], sums: npt.NDArray[np.int32]) -> None:
        """Write the sums of some blocks into the operation's array."""
        if self.operation.read_only and self.gather is None:
            return
        values = self.numbers.dequantise(sums, exponents)
        if self.operation.divisor != 1 and self.gather is None:
            values = values / np.float32(self.operation.divisor)
        self.blocks.scatter(blocks, values)

    def finish(self) -> bool:
        """Complete the sum when all slots have finished. Return False if another rank changed this rank's words."""
        operation = self.operation
        return self.gather is None or self.gather.finish(
            operation.divisor, operation.wire, self.fingerprint, read_only=operation.read_only
        )
