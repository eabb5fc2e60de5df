# SPDX-License-Identifier: Apache-2.0
"""The allreduce of what has few rows that are not zero: their numbers, and the values of the rows that anybody has.

It is up to three operations: a header, with how many rows each rank has; all ranks' numbers; the values of the union.
Rows that are no larger than `INLINE` travel with the header, and where all ranks' do, it is the only operation.

What one rank tells of its rows, another could add to: so each looks whether its own came back as it was. An error in
what all have received, all find (`Alike`); any other between two operations leaves ranks that differ in which is next.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from p4reduce import settings
from p4reduce.collectives.choice import Costs, Estimate
from p4reduce.collectives.plan import Group, Plan
from p4reduce.errors import MismatchError, P4ReduceError, UnsupportedDtype
from p4reduce.protocol import Operation
from p4reduce.protocol.numbers import check_ranks, reference_allreduce, values_per_word
from p4reduce.tensors.dense import WireChoice, wire_for, work_dtype
from p4reduce.tensors.places import Code, locate, union
from p4reduce.tensors.sparse import Elements, Rows, Values

T = TypeVar("T")
Words = npt.NDArray[np.int32]

INLINE = 512
"""Words a rank."""
LARGEST = 1 << 31
"""Values a rank, so that what one tells of its rows makes no other ask for memory that there is not."""

_Inline = tuple[list[tuple[npt.NDArray[np.int64], Values]], int]
"""All ranks' rows, and where int8's noise begins: made of all that ranks sent, it is another for other values."""
Run = Callable[[Plan[Any]], Any]
"""Carries out a plan, and gives its result when it has ended."""


def fits_header(code: Code, width: int = 1) -> bool:
    """Whether a rank's rows of so many values travel with the header."""
    return code.words + code.count * width <= INLINE


class Alike(Exception):
    """Holds an error that all ranks raise, and which of the communicator's operations is next, they agree on."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Reduction:
    """A rank's rows while they are added up."""

    estimate: Estimate | None = None
    """Of a dense tensor, what ranks have told of it comes to: known when there is a plan."""
    inline = False
    """Whether all went with the header."""

    def __init__(
        self,
        group: Group,
        rows: Rows,
        op: str,
        factor: float,
        wire: WireChoice,
        block_size: int,
        link: int = 0,
    ) -> None:
        """block_size: words. link: bits a second of this rank's, 0 where it is not known."""
        if op not in ("sum", "average"):
            what = "a tensor sent by elements" if isinstance(rows, Elements) else "a sparse tensor"
            raise ValueError(f"op={op!r} of {what}: accepted are sum, average")
        integer = work_dtype(rows.dtype) is np.int32
        if integer and (op == "average" or factor != 1):
            raise UnsupportedDtype(f"op={op!r}, factor={factor!r} of int32: accepted are sum and 1")
        self._wire = wire_for(rows.dtype, wire)
        check_ranks(self._wire, group.size)
        self._group, self._rows, self._op, self._block_size = group, rows, op, block_size
        self._divisor = group.size if op == "average" else 1
        factor = np.float32(settings.number("factor", factor))
        self._values = rows.values if factor == 1 else rows.values * factor
        self._link = link
        self._name = f"allreduce ({op}) of rows of {rows.dtype}"
        self._block = block_size * values_per_word(self._wire)

    def plan(self, result: T, run: Run, by_blocks: Callable[[], Plan[T]] | None = None) -> Plan[T]:
        """The last operation's; `run` carries out those before.

        by_blocks: of a dense tensor, what is taken in the place of it where that is cheaper.
        """
        inline, counts, others = self._header(run)
        if isinstance(self._rows, Elements):
            blocks, links = others
            per_word = values_per_word(self._wire)
            self.estimate = Costs.of_counts(self._rows.bound, self._block, per_word, counts, blocks).estimate(links)
        if inline is not None:
            self.inline = True
            finish = partial(self._write_sum, *inline)
            return Plan(self._name, None, result, finish, crossings=self._rows.crossings)
        if by_blocks is not None and self.estimate is not None and self.estimate.layout == "blocks":
            return by_blocks()
        codes = [self._code(rank, count) for rank, count in enumerate(counts)]
        places = union(self._numbers(run, codes), self._rows.bound)
        packed = _packed(places, self._rows.numbers, self._values)
        dtype = self._rows.dtype
        operation = Operation(
            packed.reshape(-1), dtype=dtype, reduce_op=self._op, divisor=self._divisor, wire=self._wire
        )

        finish = partial(self._rows.write_back, places, packed)
        return Plan(self._name, operation, result, finish, crossings=self._rows.crossings)

    def _header(self, run: Run) -> tuple[_Inline | None, list[int], list[list[int]]]:
        """All ranks' rows, where they fit into it; how many they are; and what else `_described` says of each."""
        rows, rank = self._rows, self._group.rank
        said = np.array(self._described(), np.int64).view(np.int32)
        sent = np.zeros((self._group.size, said.size + INLINE), np.int32)
        sent[rank, : said.size] = said
        code = Code(rows.numbers.size, rows.bound)
        if fits_header(code, rows.width):
            words = np.concatenate([code.encode(rows.numbers), self._values.reshape(-1).view(np.int32)])
            sent[rank, said.size : said.size + words.size] = words
        own = sent[rank].copy()
        # The fingerprint's names are what ranks must agree on before they can read each other's headers.
        what = f"{rows.dtype}:{self._wire}"
        run(
            Plan(
                f"{self._name}, their number",
                Operation(sent.reshape(-1), dtype=what, reduce_op=f"rows {self._op}"),
                None,
            )
        )
        self._check_own(own, sent[rank])
        descriptions = np.ascontiguousarray(sent[:, : said.size]).view(np.int64)
        agreed = len(rows.description)
        self._check(descriptions[:, :agreed])
        counts, *others = descriptions[:, agreed:].T.tolist()
        for of, count in enumerate(counts):
            self._check_size(of, count, others[0][of])
        codes = [self._code(of, count) for of, count in enumerate(counts)]
        if not all(fits_header(code, rows.width) for code in codes):
            return None, counts, others
        all_rows = []
        for of, code in enumerate(codes):
            words = sent[of, said.size :]
            values = words[code.words : code.words + code.count * rows.width].view(self._values.dtype)
            all_rows.append((self._decoded(of, code, words[: code.words]), values.reshape(code.count, rows.width)))
        return (all_rows, zlib.crc32(sent.data) & ~0xFF), counts, others

    def _described(self) -> list[int]:
        rows = self._rows
        blocks = rows.blocks(self._block) if isinstance(rows, Elements) else 0
        return [*rows.description, rows.numbers.size, blocks, self._link]

    def _numbers(self, run: Run, codes: list[Code]) -> list[npt.NDArray[np.int64]]:
        """Of all ranks' rows."""
        ends = np.cumsum([code.words for code in codes])
        places = [slice(end - code.words, end) for end, code in zip(ends.tolist(), codes, strict=True)]
        words = np.zeros(int(ends[-1]), np.int32)
        own = self._group.rank
        code = codes[own].encode(self._rows.numbers)
        words[places[own]] = code
        run(Plan(f"{self._name}, their numbers", Operation(words, reduce_op="rows"), None))
        self._check_own(code, words[places[own]])
        return [self._decoded(rank, code, words[places[rank]]) for rank, code in enumerate(codes)]

    def _check_own(self, sent: Words, received: Words) -> None:
        if not np.array_equal(sent, received):
            raise P4ReduceError(
                f"another rank overwrote the row numbers that this rank, {self._group.rank}, sent; packets do not tell "
                "which rank. Check that all ranks run the same version, and that no machine is faulty"
            )

    def _check_size(self, rank: int, count: int, blocks: int) -> None:
        """Of what a rank tells: the rows of a sparse tensor, or the elements of a dense one and their blocks."""
        rows = self._rows
        if isinstance(rows, Elements):
            well = -(-count // self._block) <= blocks <= count <= rows.bound
            what = f"{count} elements of {rows.bound} in {blocks} blocks"
        else:
            well = blocks == 0 and count * max(1, rows.width) <= LARGEST
            what = f"{count} rows of {rows.width} values: accepted are up to {LARGEST} values a rank"
        if not well:
            raise Alike(P4ReduceError(f"rank {rank} announced rows that cannot exist: {what}"))

    def _check(self, descriptions: npt.NDArray[np.int64]) -> None:
        """Raises MismatchError if ranks' tensors differ in shape."""
        if (descriptions != descriptions[0]).any():
            shapes = "; ".join(
                f"rank {rank}: {shape[0]} elements of a dense tensor"
                if sparse_dim < 0
                else f"rank {rank}: {tuple(shape)}, sparse_dim {sparse_dim}"
                for rank, (sparse_dim, *shape) in enumerate(descriptions.tolist())
            )
            raise Alike(MismatchError(f"ranks reduce tensors of different shapes: {shapes}"))

    def _code(self, rank: int, count: int) -> Code:
        try:
            return Code(count, self._rows.bound)
        except ValueError as error:
            raise Alike(P4ReduceError(f"rank {rank} announced rows that cannot exist: {error}")) from None

    def _decoded(self, rank: int, code: Code, words: Words) -> npt.NDArray[np.int64]:
        try:
            return code.decode(words)
        except ValueError as error:
            raise Alike(P4ReduceError(f"rank {rank} announced rows that cannot exist: {error}")) from None

    def _write_sum(self, rows: list[tuple[npt.NDArray[np.int64], Values]], noise: int) -> None:
        """The reduction of all ranks' rows, with the bits that a switch would give it. noise: where int8's begins."""
        places = union([numbers for numbers, _ in rows], self._rows.bound)
        packed = [_packed(places, numbers, values) for numbers, values in rows]
        op = "avg" if self._op == "average" else "sum"
        self._rows.write_back(places, reference_allreduce(packed, op, self._block_size, self._wire, noise))


def _packed(all_: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64], values: Values) -> Values:
    """The rows of `all_`, zeros where `numbers` are not: shape (rows, width)."""
    packed = np.zeros((all_.size, values.shape[1]), values.dtype)
    packed[locate(all_, numbers)] = values
    return packed
