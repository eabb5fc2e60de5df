# SPDX-License-Identifier: Apache-2.0
"""The layout of a header: code that unpacks all its fields with one call of struct, and packs them again."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from p4reduce_targets.sim.code import BIT_AND, BIT_OR, SHIFT, Expr, Set, Statement, assign, compose, fit, variable
from p4reduce_targets.sim.errors import UnsupportedFeature
from p4reduce_targets.sim.program import Field, Header, Names

CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}


@dataclass(frozen=True, slots=True)
class Chunk:
    """A minimal run of adjacent fields that fills whole bytes."""

    fields: tuple[Field, ...]

    @property
    def bytes(self) -> int:
        """The length in bytes."""
        return sum(field.bits for field in self.fields) // 8

    @property
    def pieces(self) -> list[int]:
        """The lengths of the integers as which struct reads the chunk."""
        left, pieces = self.bytes, []
        for size in (8, 4, 2, 1):
            while left >= size:
                pieces.append(size)
                left -= size
        return pieces

    def shifts(self) -> list[tuple[Field, int]]:
        """Return each field with the offset of its least significant bit in the chunk."""
        left, shifts = 8 * self.bytes, []
        for field in self.fields:
            left -= field.bits
            shifts.append((field, left))
        return shifts


class Layout:
    """The layout of one header. Its struct is the global `codec` in the generated code."""

    def __init__(self, header: Header, names: Names) -> None:
        if header.bits % 8:
            raise UnsupportedFeature(
                f"a header of {header.bits} bits, which are no whole bytes,", f"header {header.name}"
            )
        self.header = header
        self.codec = names.new(header.name, "codec")
        self.chunks: list[Chunk] = []
        fields: list[Field] = []
        for field in header.fields:
            fields.append(field)
            if sum(item.bits for item in fields) % 8 == 0:
                self.chunks.append(Chunk(tuple(fields)))
                fields = []
        self._pieces = [
            (chunk, [(names.new(header.name, "piece"), size) for size in chunk.pieces]) for chunk in self.chunks
        ]

    def struct(self) -> struct.Struct:
        """Return the struct that is the global `codec`."""
        return struct.Struct(">" + "".join(CODES[size] for chunk in self.chunks for size in chunk.pieces))

    def unpack(self, offset: str) -> list[Statement]:
        """Return statements that set all fields from the bytes of `frame` at an offset."""
        targets: list[str] = []
        derived: list[Statement] = []
        for chunk, pieces in self._pieces:
            if len(chunk.fields) == len(pieces) == 1:
                targets.append(chunk.fields[0].variable)
                continue
            targets += [name for name, _ in pieces]
            whole = join_pieces(pieces)
            for field, shift in chunk.shifts():
                shifted = whole
                if shift:
                    bits = 8 * chunk.bytes - shift
                    shifted = compose(f"{whole.within(SHIFT)} >> {shift}", whole, bits=bits, level=SHIFT)
                derived.append(assign(field.variable, fit(shifted, field.bits)))
        if not targets:
            return []
        call = f"{self.codec}.unpack_from(frame, {offset})"
        value = call if len(targets) > 1 else f"{call}[0]"
        return [Set(tuple(targets), Expr(value, frozenset({"frame", "at"}))), *derived]

    def pack(self) -> Expr:
        """Return the expression for the header's bytes."""
        arguments: list[Expr] = []
        for chunk in self.chunks:
            whole = join_fields(chunk)
            left = 8 * chunk.bytes
            for size in chunk.pieces:
                left -= 8 * size
                part = whole
                if left:
                    bits = None if whole.bits is None else whole.bits - left
                    part = compose(f"{whole.within(SHIFT)} >> {left}", whole, bits=bits, level=SHIFT)
                arguments.append(fit(part, 8 * size))
        return compose(f"{self.codec}.pack({', '.join(item.text for item in arguments)})", *arguments)


def join_pieces(pieces: Sequence[tuple[str, int]]) -> Expr:
    """Return the integer that consists of big-endian pieces (variable, bytes)."""
    left = sum(size for _, size in pieces)
    parts, bits = [], 8 * left
    for name, size in pieces:
        left -= size
        piece = variable(name, 8 * size)
        parts.append(compose(f"{name} << {8 * left}", piece, level=SHIFT) if left else piece)
    return _any_of(parts, bits)


def join_fields(chunk: Chunk) -> Expr:
    """Return the integer that consists of a chunk's fields."""
    parts = []
    for field, shift in chunk.shifts():
        value = variable(field.variable, field.bits)
        parts.append(compose(f"{field.variable} << {shift}", value, level=SHIFT) if shift else value)
    return _any_of(parts, 8 * chunk.bytes)


def _any_of(parts: Sequence[Expr], bits: int) -> Expr:
    if len(parts) == 1:
        return parts[0]
    return compose(" | ".join(part.within(BIT_AND) for part in parts), *parts, bits=bits, level=BIT_OR)
