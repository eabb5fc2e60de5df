# SPDX-License-Identifier: Apache-2.0
"""The allreduce of tensors with few non-zero rows: the rows' indices, and the values of the union of all ranks' rows.

It takes up to three operations: all ranks' headers, which say how many rows each rank has; all ranks' indices; and the
values of the union. A rank's rows travel with its header if they take at most `INLINE` words. If that is so for all
ranks, the headers are the only operation.

Headers and indices are sums of each rank's words and the other ranks' zeros, so a faulty rank could change another's
words. Each rank therefore compares its own words in the sum with those that it sent. All ranks find an error in data
that all have received, and raise it alike (`AgreedError`). After any other error between two operations, the ranks no
longer agree on which operation is next.
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
from p4reduce.tensors.indices import Code, locate, union
from p4reduce.tensors.sparse import Elements, Rows, Values
from p4reduce.tensors.spec import wire_for

T = TypeVar("T")
Words = npt.NDArray[np.int32]

INLINE = 512
"""Most words of a rank's indices and values that travel with the header."""
LARGEST = 1 << 31
"""Most values of a rank, so that a wrong count from one rank makes no other rank run out of memory."""

_Inline = tuple[list[tuple[npt.NDArray[np.int64], Values]], int]
"""The indices and values of each rank's rows, and the seed of int8's rounding noise.

The seed is a checksum of all that ranks sent, so it differs by call. Its lower 8 bits are 0, for a rank's number.
"""
Run = Callable[[Plan[Any]], None]
"""Executes a plan, and returns when it has ended."""


def fits_header(code: Code, width: int = 1) -> bool:
    """Return whether a rank's rows of `width` values travel with the header."""
    return code.words + code.count * width <= INLINE


class AgreedError(Exception):
    """Holds an error that all ranks raise; they still agree on which of the communicator's operations is next."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Reduction:
    """The reduction of a rank's rows with those of all other ranks."""

    estimate: Estimate | None = None
    """Costs of a dense tensor in both layouts, from the ranks' headers. `plan` sets it."""
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
        """Return the plan of the last operation, after `run` has executed the operations before it.

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
        all_ = union(self._exchange_indices(run, codes), self._rows.bound)
        scattered = _scatter(all_, self._rows.indices, self._values)
        dtype = self._rows.dtype
        operation = Operation(
            scattered.reshape(-1), dtype=dtype, reduce_op=self._op, divisor=self._divisor, wire=self._wire
        )

        finish = partial(self._rows.write_back, all_, scattered)
        return Plan(self._name, operation, result, finish, transfers=self._rows.transfers)

    def _header(self, run: Run) -> tuple[_Inline | None, list[Code], list[int], list[int]]:
        """Exchange the headers, and return what they say of each rank.

        The result: all ranks' rows, or None if they do not fit into the headers; then for each rank the code of its
        indices, the number of its non-zero blocks (of a dense tensor), and the rate of its link.
        """
        rows, rank = self._rows, self._group.rank
        # The header is int64 numbers, which are added as pairs of int32 words.
        header = np.array(self._own_header(), np.int64).view(np.int32)
        sent = np.zeros((self._group.size, header.size + INLINE), np.int32)
        sent[rank, : header.size] = header
        code = Code(rows.indices.size, rows.bound)
        if fits_header(code, rows.width):
            words = np.concatenate([code.encode(rows.indices), self._values.reshape(-1).view(np.int32)])
            sent[rank, header.size : header.size + words.size] = words
        own = sent[rank].copy()
        # Ranks can read each other's headers only if these names agree, which the fingerprint makes sure of.
        dtypes = f"{rows.dtype}:{self._wire}"
        operation = Operation(sent.reshape(-1), dtype=dtypes, reduce_op=f"rows {self._op}")
        run(Plan(f"{self._name}, row counts", operation, None))
        if not np.array_equal(own, sent[rank]):
            raise self._overwritten_error()
        descriptions = np.ascontiguousarray(sent[:, : header.size]).view(np.int64)
        agreed = len(rows.description)  # the numbers of a header that must be the same at all ranks
        if (descriptions[:, :agreed] != descriptions[0, :agreed]).any():
            raise AgreedError(_different_shapes(descriptions[:, :agreed].tolist()))
        counts, all_blocks, links = descriptions[:, agreed:].T.tolist()
        codes = self._codes(counts, all_blocks)
        for code in codes:
            if not fits_header(code, rows.width):
                return None, codes, all_blocks, links
        values = []
        for other, code in enumerate(codes):
            words = sent[other, header.size + code.words :][: code.count * rows.width]
            values.append(words.view(self._values.dtype).reshape(code.count, rows.width))
        indices = self._decode(codes, [words[header.size :] for words in sent])
        return (list(zip(indices, values, strict=True)), zlib.crc32(sent.data) & ~0xFF), codes, all_blocks, links

    def _own_header(self) -> list[int]:
        """Return this rank's header: its shape, its number of rows, its non-zero blocks and its link's rate."""
        rows = self._rows
        blocks = rows.blocks(self._block) if isinstance(rows, Elements) else 0
        return [*rows.description, rows.indices.size, blocks, self._link]

    def _codes(self, counts: list[int], blocks: list[int]) -> list[Code]:
        """Return the codes of all ranks' indices. Raises `AgreedError` for counts that no rank can have."""
        rows = self._rows
        codes = []
        for rank, (count, nonzero_blocks) in enumerate(zip(counts, blocks, strict=True)):
            if isinstance(rows, Elements):
                is_possible = -(-count // self._block) <= nonzero_blocks <= count <= rows.bound
                what = f"{count} elements of {rows.bound} in {nonzero_blocks} blocks"
            else:
                is_possible = nonzero_blocks == 0 and count * max(1, rows.width) <= LARGEST
                what = f"{count} rows of {rows.width} values: accepted are up to {LARGEST} values a rank"
            if not is_possible:
                raise _impossible_error(rank, what)
            try:
                codes.append(Code(count, rows.bound))
            except ValueError as error:
                raise _impossible_error(rank, error) from None
        return codes

    def _exchange_indices(self, run: Run, codes: list[Code]) -> list[npt.NDArray[np.int64]]:
        """Exchange the indices of all ranks' rows, and return them."""
        ends = np.cumsum([code.words for code in codes])
        words = np.zeros(int(ends[-1]), np.int32)
        parts = np.split(words, ends[:-1])
        own = self._group.rank
        code = codes[own].encode(self._rows.indices)
        parts[own][:] = code
        run(Plan(f"{self._name}, row indices", Operation(words, reduce_op="rows"), None))
        if not np.array_equal(code, parts[own]):
            raise self._overwritten_error()
        return self._decode(codes, parts)

    def _overwritten_error(self) -> P4ReduceError:
        return P4ReduceError(
            f"another rank overwrote the row counts or indices that this rank, {self._group.rank}, sent; packets do "
            "not tell which rank. Check that all ranks run the same version, and that no machine is faulty"
        )

    def _decode(self, codes: list[Code], parts: Sequence[Words]) -> list[npt.NDArray[np.int64]]:
        """Return each rank's indices, decoded from the first words of its part."""
        indices: list[npt.NDArray[np.int64]] = []
        try:
            for code, words in zip(codes, parts, strict=True):
                indices.append(code.decode(words[: code.words]))
        except ValueError as error:
            raise _impossible_error(len(indices), error) from None
        return indices

    def _write_sum(self, rows: list[tuple[npt.NDArray[np.int64], Values]], noise: int) -> None:
        """Reduce all ranks' rows here, with the same bits as on a switch. noise: seed of int8's rounding."""
        all_ = union([indices for indices, _ in rows], self._rows.bound)
        scattered = [_scatter(all_, indices, values) for indices, values in rows]
        op = "avg" if self._op == "average" else "sum"
        self._rows.write_back(all_, reference_allreduce(scattered, op, self._block_size, self._wire, noise))


def _impossible_error(rank: int, what: object) -> AgreedError:
    return AgreedError(P4ReduceError(f"rank {rank} announced rows that cannot exist: {what}"))


def _different_shapes(descriptions: list[list[int]]) -> MismatchError:
    shapes = "; ".join(
        f"rank {rank}: {shape[0]} elements of a dense tensor"
        if sparse_dim < 0
        else f"rank {rank}: {tuple(shape)}, sparse_dim {sparse_dim}"
        for rank, (sparse_dim, *shape) in enumerate(descriptions)
    )
    return MismatchError(f"ranks reduce tensors of different shapes: {shapes}")


def _scatter(all_: npt.NDArray[np.int64], indices: npt.NDArray[np.int64], values: Values) -> Values:
    """Return a row for each index in `all_`, zeros for those that `indices` lacks: shape (rows, width)."""
    scattered = np.zeros((all_.size, values.shape[1]), values.dtype)
    scattered[locate(all_, indices)] = values
    return scattered
