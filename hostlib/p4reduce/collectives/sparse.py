# SPDX-License-Identifier: Apache-2.0
"""The allreduce of what has few rows that are not zero: their numbers, and the values of the rows that anybody has.

It is up to three operations: a header, with how many rows each rank has; all ranks' numbers; the values of the union.
Rows that are no larger than `INLINE` travel with the header, and where all ranks' do, it is the only operation.

What one rank tells of its rows, another could add to: so each looks whether its own came back as it was. An error in
what all have received, all find (`Alike`); any other between two operations leaves ranks that differ in which is next.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from p4reduce import settings
from p4reduce.collectives.choice import Costs, Estimate
from p4reduce.collectives.plan import SUMS, Collective, Group, Plan
from p4reduce.errors import MismatchError, P4ReduceError, UnsupportedDtype
from p4reduce.protocol import Operation
from p4reduce.protocol.numbers import check_ranks, reference_allreduce, values_per_word
from p4reduce.tensors.places import Code, locate, union
from p4reduce.tensors.sparse import Elements, Rows, Values
from p4reduce.tensors.spec import wire_for

T = TypeVar("T")
Words = npt.NDArray[np.int32]

INLINE = 512
"""Words a rank."""
LARGEST = 1 << 31
"""Values a rank, so that what one tells of its rows makes no other ask for memory that there is not."""

_Inline = tuple[list[tuple[npt.NDArray[np.int64], Values]], int]
"""All ranks' rows, and where int8's noise begins: made of all that ranks sent, it is another for other values."""
Run = Callable[[Plan[Any]], None]
"""Executes a plan, and returns when it has ended."""


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

    def __init__(self, group: Group, rows: Rows, call: Collective, block_size: int, link: int = 0) -> None:
        """block_size: words. link: bits a second of this rank's, 0 where it is not known."""
        op, factor = call.op, call.factor
        if op not in SUMS:
            what = "a tensor sent by elements" if isinstance(rows, Elements) else "a sparse tensor"
            raise ValueError(f"op={op!r} of {what}: accepted are sum, average")
        if rows.values.dtype == np.int32 and (op == "average" or factor != 1):
            raise UnsupportedDtype(f"op={op!r}, factor={factor!r} of int32: accepted are sum and 1")
        self._wire = wire_for(rows.dtype, call.wire)
        check_ranks(self._wire, group.size)
        self._group, self._rows, self._op, self._block_size = group, rows, op, block_size
        self._divisor = group.size if op == "average" else 1
        self._values = rows.values if factor == 1 else rows.values * np.float32(settings.number("factor", factor))
        self._link = link
        self._name = f"allreduce ({op}) of rows of {rows.dtype}"
        self._block = block_size * values_per_word(self._wire)

    def plan(self, result: T, run: Run, by_blocks: Callable[[], Plan[T]] | None = None) -> Plan[T]:
        """Return the last operation's; `run` carries out those before.

        by_blocks: of a dense tensor, what is taken in the place of it where that is cheaper.
        """
        inline, codes, blocks, links = self._header(run)
        if isinstance(self._rows, Elements):
            per_word, counts = values_per_word(self._wire), [code.count for code in codes]
            self.estimate = Costs.of_counts(self._rows.bound, self._block, per_word, counts, blocks).estimate(links)
        if inline is not None:
            self.inline = True
            finish = partial(self._write_sum, *inline)
            return Plan(self._name, None, result, finish, transfers=self._rows.transfers)
        if by_blocks is not None and self.estimate is not None and self.estimate.layout == "blocks":
            return by_blocks()
        places = union(self._numbers(run, codes), self._rows.bound)
        packed = _packed(places, self._rows.numbers, self._values)
        dtype = self._rows.dtype
        operation = Operation(
            packed.reshape(-1), dtype=dtype, reduce_op=self._op, divisor=self._divisor, wire=self._wire
        )

        finish = partial(self._rows.write_back, places, packed)
        return Plan(self._name, operation, result, finish, transfers=self._rows.transfers)

    def _header(self, run: Run) -> tuple[_Inline | None, list[Code], list[int], list[int]]:
        """All ranks' rows, where they fit into it; then for each rank the code of its numbers, its blocks of elements
        that are not zero, and the rate of its link."""
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
        operation = Operation(sent.reshape(-1), dtype=what, reduce_op=f"rows {self._op}")
        run(Plan(f"{self._name}, their number", operation, None))
        if not np.array_equal(own, sent[rank]):
            raise self._overwritten()
        descriptions = np.ascontiguousarray(sent[:, : said.size]).view(np.int64)
        agreed = len(rows.description)
        if (descriptions[:, :agreed] != descriptions[0, :agreed]).any():
            raise Alike(_different_shapes(descriptions[:, :agreed].tolist()))
        counts, all_blocks, links = descriptions[:, agreed:].T.tolist()
        codes = self._codes(counts, all_blocks)
        for code in codes:
            if not fits_header(code, rows.width):
                return None, codes, all_blocks, links
        values = []
        for of, code in enumerate(codes):
            words = sent[of, said.size + code.words :][: code.count * rows.width]
            values.append(words.view(self._values.dtype).reshape(code.count, rows.width))
        numbers = self._decoded(codes, [words[said.size :] for words in sent])
        return (list(zip(numbers, values, strict=True)), zlib.crc32(sent.data) & ~0xFF), codes, all_blocks, links

    def _described(self) -> list[int]:
        """What this rank tells of its rows."""
        rows = self._rows
        blocks = rows.blocks(self._block) if isinstance(rows, Elements) else 0
        return [*rows.description, rows.numbers.size, blocks, self._link]

    def _codes(self, counts: list[int], blocks: list[int]) -> list[Code]:
        """Return the codes of all ranks' numbers. Raises `Alike` for what a rank cannot have told of its rows."""
        rows = self._rows
        codes = []
        for rank, (count, full) in enumerate(zip(counts, blocks, strict=True)):
            if isinstance(rows, Elements):
                is_possible = -(-count // self._block) <= full <= count <= rows.bound
                what = f"{count} elements of {rows.bound} in {full} blocks"
            else:
                is_possible = full == 0 and count * max(1, rows.width) <= LARGEST
                what = f"{count} rows of {rows.width} values: accepted are up to {LARGEST} values a rank"
            if not is_possible:
                raise _impossible(rank, what)
            try:
                codes.append(Code(count, rows.bound))
            except ValueError as error:
                raise _impossible(rank, error) from None
        return codes

    def _numbers(self, run: Run, codes: list[Code]) -> list[npt.NDArray[np.int64]]:
        """Return the numbers of all ranks' rows."""
        ends = np.cumsum([code.words for code in codes])
        words = np.zeros(int(ends[-1]), np.int32)
        parts = np.split(words, ends[:-1])
        own = self._group.rank
        code = codes[own].encode(self._rows.numbers)
        parts[own][:] = code
        run(Plan(f"{self._name}, their numbers", Operation(words, reduce_op="rows"), None))
        if not np.array_equal(code, parts[own]):
            raise self._overwritten()
        return self._decoded(codes, parts)

    def _overwritten(self) -> P4ReduceError:
        return P4ReduceError(
            f"another rank overwrote the row numbers that this rank, {self._group.rank}, sent; packets do not tell "
            "which rank. Check that all ranks run the same version, and that no machine is faulty"
        )

    def _decoded(self, codes: list[Code], parts: Sequence[Words]) -> list[npt.NDArray[np.int64]]:
        """Return the numbers, from words that begin with the code."""
        numbers: list[npt.NDArray[np.int64]] = []
        try:
            for code, words in zip(codes, parts, strict=True):
                numbers.append(code.decode(words[: code.words]))
        except ValueError as error:
            raise _impossible(len(numbers), error) from None
        return numbers

    def _write_sum(self, rows: list[tuple[npt.NDArray[np.int64], Values]], noise: int) -> None:
        """The reduction of all ranks' rows, with the bits that a switch would give it. noise: where int8's begins."""
        places = union([numbers for numbers, _ in rows], self._rows.bound)
        packed = [_packed(places, numbers, values) for numbers, values in rows]
        op = "avg" if self._op == "average" else "sum"
        self._rows.write_back(places, reference_allreduce(packed, op, self._block_size, self._wire, noise))


def _impossible(rank: int, what: object) -> Alike:
    return Alike(P4ReduceError(f"rank {rank} announced rows that cannot exist: {what}"))


def _different_shapes(descriptions: list[list[int]]) -> MismatchError:
    shapes = "; ".join(
        f"rank {rank}: {shape[0]} elements of a dense tensor"
        if sparse_dim < 0
        else f"rank {rank}: {tuple(shape)}, sparse_dim {sparse_dim}"
        for rank, (sparse_dim, *shape) in enumerate(descriptions)
    )
    return MismatchError(f"ranks reduce tensors of different shapes: {shapes}")


def _packed(all_: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64], values: Values) -> Values:
    """Return the rows of `all_`, zeros where `numbers` are not: shape (rows, width)."""
    packed = np.zeros((all_.size, values.shape[1]), values.dtype)
    packed[locate(all_, numbers)] = values
    return packed
