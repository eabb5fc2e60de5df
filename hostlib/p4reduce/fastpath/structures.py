# SPDX-License-Identifier: Apache-2.0
"""The structures of hostlib/csrc/include/p4reduce*.h, field by field; a test compares both."""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_char_p, c_double, c_float, c_int32, c_uint16, c_uint32, c_uint64, c_void_p
from dataclasses import fields
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

from p4reduce import protocol
from p4reduce.protocol.constants import MAX_RANKS, MAX_WORKERS

ABI = 4

OK, INVALID, MISMATCH, ABORTED, TIMEOUT, FAILED, CLOSED, SYSTEM, NO_MEMORY, NETWORK = range(10)
TYPES = {"float32": 1, "int32": 2, "float16": 3, "bfloat16": 4}
WIRES = {"int32": 0, "int16": 1, "int8": 2}
ZEROS = {"skipped": 0, "first": 1, "sent": 2}
LINK_UDP, LINK_PACKET = 1, 2

Ranks = c_uint32 * (MAX_RANKS // 32)  # a bitmap

S = TypeVar("S", bound="Sized")


def _each(kind: Any, names: str) -> list[tuple[str, Any]]:
    """Return fields of one type, in order."""
    return [(name, kind) for name in names.split()]


@lru_cache(maxsize=1024)
def array_of(kind: Any, length: int) -> Any:
    """Return the type of C arrays of `length` items, cached: ctypes leaves each new type to the garbage collector."""
    return kind * length


class Sized(ctypes.Structure):
    """A structure that begins with its size."""

    size: int

    @classmethod
    def make(cls: type[S], **fields: Any) -> S:
        return cls(**{"size": ctypes.sizeof(cls), **fields})


class Error(Sized):
    status: int
    rank: int
    awaited: list[int]
    message: bytes
    _fields_: ClassVar = [
        ("size", c_uint32),
        *_each(c_int32, "status rank"),
        ("awaited", Ranks),
        ("message", c_char * 1024),
    ]


class Membership(Sized):
    _fields_: ClassVar = [
        *_each(c_uint32, "size job generation rank world_size slots lanes block_size first_seq peer_count"),
        ("peers", c_uint16 * MAX_WORKERS),
        ("abort_secret", c_uint64),
        *_each(c_uint32, "sharing reserved"),
        ("hosts", c_uint16 * MAX_RANKS),
        *_each(c_uint32, "first_slot all_slots"),
    ]


class Timing(Sized):
    _fields_: ClassVar = [
        *_each(c_uint32, "size reserved"),
        *((field.name, c_double) for field in fields(protocol.Timing)),
    ]


STATS = tuple(field.name for field in fields(protocol.Stats))


class Stats(Sized):
    seconds: float
    _fields_: ClassVar = [
        *_each(c_uint32, "size reserved"),
        *((name, c_uint64) for name in STATS[:-3]),
        ("seconds", c_double),
        *((name, c_uint64) for name in STATS[-3:]),
    ]


class Held(Sized):
    quiet: int
    operations: int
    first_seq: int
    _fields_: ClassVar = [
        *_each(c_uint32, "size quiet"),
        ("operations", c_uint64),
        *_each(c_uint32, "first_seq changes"),
    ]


OnEnd = ctypes.CFUNCTYPE(None, c_void_p, ctypes.POINTER(Error))


class Request(Sized):
    _fields_: ClassVar = [
        *_each(c_uint32, "size type"),
        ("data", c_void_p),
        ("count", c_uint64),
        *_each(c_char_p, "dtype reduce_op"),
        ("divisor", c_float),
        ("wire", c_uint32),
        ("timeout", c_double),
        ("name", c_char_p),
        ("on_end", OnEnd),
        ("context", c_void_p),
        ("residual", ctypes.POINTER(c_float)),
        *_each(c_uint32, "read_only zeros"),
    ]


class Options(Sized):
    _fields_: ClassVar = [
        *_each(c_uint32, "size link"),
        ("socket", c_int32),
        ("reserved", c_uint32),
        *_each(c_char_p, "headers switch_address local_address thread_name"),
        ("timing", ctypes.POINTER(Timing)),
        ("more_sockets", ctypes.POINTER(c_int32)),
        *_each(c_uint32, "more_count threads"),
        ("more_jobs", ctypes.POINTER(c_uint32)),
        ("aggregator_jobs", ctypes.POINTER(c_uint32)),
        *_each(c_uint32, "spares reserved_2"),
    ]


class LocalOptions(Sized):
    _fields_: ClassVar = [
        *_each(c_uint32, "size copies"),
        ("rendezvous", c_char_p),
        ("timeout", c_double),
        ("thread_name", c_char_p),
    ]
