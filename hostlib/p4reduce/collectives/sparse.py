# SPDX-License-Identifier: Apache-2.0
"""The allreduce of tensors with few non-zero rows: the rows' indices, and the values of the union of all ranks' rows.

It takes up to three operations: a header, with the number of each rank's rows; all ranks' indices; the values of the
union. Rows no larger than `INLINE` travel with the header. If those of all ranks do, the header is the only operation.

Headers and indices are sums of each rank's words and the other ranks' zeros, so a faulty rank could change another's
words. Each rank therefore compares its own words in the sum with those that it sent. All ranks find an error in data
that all have received, and raise it alike (`Alike`). After any other error between two operations, the ranks no longer
agree on which operation is next.
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
"""Most words of a rank's indices and values that travel with the header."""
LARGEST = 1 << 31
"""Most values of a rank, so that a wrong count from one rank makes no other rank run out of memory."""

_Inline = tuple[list[tuple[npt.NDArray[np.int64], Values]], int]
"""All ranks' rows, and the seed of int8's rounding noise: a checksum of all that ranks sent, so it differs by call."""
Run = Callable[[Plan[Any]], None]
"""Executes a plan, and returns when it has ended."""


def fits_header(code: Code, width: int = 1) -> bool:
    """Return whether a rank's rows of `width` values travel with the header."""
    return code.words + code.count * width <= INLINE


class Alike(Exception):
    """Holds an error that all ranks raise; they still agree on which of the communicator's operations is next."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Reduction:
    """A rank's rows during their reduction."""

    estimate: Estimate | None = None
    """Costs of a dense tensor in both layouts, by the ranks' headers: known when there is a plan."""
    inline = False
    """Whether all rows went with the header."""

    def __init__(self, group: Group, rows: Rows, call: Collective, block_size: int, link: int = 0) -> None:
        """Check the arguments, and multiply the values by the call's factor.

        block_size: words of a block. link: bits a second of this rank's link, 0 if it is not known.
        """
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
        """Return the plan of the last operation; `run` carries out those before.

        by_blocks: makes the plan that replaces this one if blocks are cheaper; for dense tensors.
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
        """Exchange the headers, and return what they say of each rank.

        The result: all ranks' rows, or None if they do not fit into the headers; then for each rank the code of its
        indices, the number of its non-zero blocks (of a dense tensor), and the rate of its link.
        """
        rows, rank = self._rows, self._group.rank
        said = np.array(self._described(), np.int64).view(np.int32)
        sent = np.zeros((self._group.size, said.size + INLINE), np.int32)
        sent[rank, : said.size] = said
        code = Code(rows.numbers.size, rows.bound)
        if fits_header(code, rows.width):
            words = np.concatenate([code.encode(rows.numbers), self._values.reshape(-1).view(np.int32)])
            sent[rank, said.size : said.size + words.size] = words
        own = sent[rank].copy()
        # Ranks can read each other's headers only if these names agree, which the fingerprint makes sure of.
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
        """Return this rank's header: its shape, its number of rows, its non-zero blocks and its link's rate."""
        rows = self._rows
        blocks = rows.blocks(self._block) if isinstance(rows, Elements) else 0
        return [*rows.description, rows.numbers.size, blocks, self._link]

    def _codes(self, counts: list[int], blocks: list[int]) -> list[Code]:
        """Return the codes of all ranks' indices. Raises `Alike` for counts that no rank can have."""
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
        """Exchange the indices of all ranks' rows, and return them."""
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
        """Return each rank's indices, decoded from the first words of its part."""
        numbers: list[npt.NDArray[np.int64]] = []
        try:
            for code, words in zip(codes, parts, strict=True):
                numbers.append(code.decode(words[: code.words]))
        except ValueError as error:
            raise _impossible(len(numbers), error) from None
        return numbers

    def _write_sum(self, rows: list[tuple[npt.NDArray[np.int64], Values]], noise: int) -> None:
        """Reduce all ranks' rows here, with the same bits as on a switch. noise: seed of int8's rounding."""
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
    """Return a row for each index in `all_`, zeros for those that `numbers` lacks: shape (rows, width)."""
    packed = np.zeros((all_.size, values.shape[1]), values.dtype)
    packed[locate(all_, numbers)] = values
    return packed
