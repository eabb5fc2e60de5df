# SPDX-License-Identifier: Apache-2.0
"""One allreduce, as its caller sees it and as the worker prepares it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.errors import UnsupportedDtype
from p4reduce.protocol.blocks import ZERO, Blocks, Dealing
from p4reduce.protocol.fingerprint import fingerprint
from p4reduce.protocol.membership import Membership
from p4reduce.protocol.numbers import Numbers


class Operation:
    """One allreduce of a flat array, whose contents are replaced by the sum over all ranks.

    `data`: 1-d, C-contiguous, writable, float32 or int32; nobody else may touch it until `done`, and after an error
    its contents are undefined. `dtype` names what the caller has, say "bfloat16" that is carried as float32 (None: that
    of `data`), and `reduce_op` what it wants; ranks must agree on both and on the number of elements.

    `divisor`: for an average of float32. What carries the operation divides by it if that costs no pass over the data,
    and says so in `divided`; otherwise it is the caller's to do.
    """

    def __init__(
        self, data: npt.NDArray[Any], *, dtype: str | None = None, reduce_op: str = "sum", divisor: int = 1
    ) -> None:
        if data.dtype != np.float32 and data.dtype != np.int32:
            raise UnsupportedDtype(f"data has dtype {data.dtype}: supported are native float32 and int32")
        if data.ndim != 1 or not data.flags.c_contiguous or not data.flags.writeable:
            raise ValueError(
                f"data has shape {data.shape}, strides {data.strides}, writable {data.flags.writeable}: accepted is a "
                "writable C-contiguous array of one dimension"
            )
        self.data = data
        self.dtype = dtype or data.dtype.name
        self.reduce_op = reduce_op
        self.divisor = divisor
        self.divided = False
        self.done = False
        self.error: BaseException | None = None
        self.on_done: Callable[[Operation], None] | None = None

    def __repr__(self) -> str:
        return f"<{self.reduce_op} of {self.data.size} {self.dtype}>"

    def finish(self, error: BaseException | None = None) -> None:
        """For the worker: ends the operation, well or with an error."""
        self.error = error
        self.done = True
        if self.on_done is not None:
            self.on_done(self)


class Task:
    """An operation under way: what is left to send of it."""

    def __init__(self, operation: Operation, counter: int, membership: Membership, numbers: Numbers) -> None:
        self.operation = operation
        self.counter = counter
        self.fingerprint = fingerprint(counter, operation.dtype, operation.reduce_op, operation.data.size)
        self.numbers = numbers
        self.blocks = Blocks(operation.data, membership.block_size)
        exponents = self.blocks.scan()
        self.dealing = Dealing(exponents, membership.slots * membership.lanes)
        self.blocks.clear(exponents == ZERO)
        # At least one slot, so that an empty tensor is announced too and ranks of different shapes meet.
        self.slots = max(1, min(membership.slots, -(-self.blocks.count // membership.lanes)))
        self.slots_left = self.slots
