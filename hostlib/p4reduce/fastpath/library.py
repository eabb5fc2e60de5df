# SPDX-License-Identifier: Apache-2.0
"""The loader of libp4reduce.so, and the types of its functions.

P4REDUCE_LIBRARY names another build of it, for example one with sanitizers.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import p4reduce
from p4reduce.errors import CollectiveTimeout, JobAborted, MismatchError, P4ReduceError
from p4reduce.fastpath import structures as c
from p4reduce.protocol import Membership, Operation, Stats
from p4reduce.protocol.halves import type_name
from p4reduce.protocol.memory import addresses
from p4reduce.protocol.numbers import SUPPORTED
from p4reduce.transport import TransportError

NAME = "libp4reduce.so"

_ERROR = POINTER(c.Error)
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "p4reduce_abi": (c_uint, []),
    "p4reduce_simd": (c_char_p, []),
    "p4reduce_open": (c_void_p, [POINTER(c.Membership), POINTER(c.Options), _ERROR]),
    "p4reduce_open_local": (c_void_p, [POINTER(c.Membership), POINTER(c.LocalOptions), _ERROR]),
    "p4reduce_open_sharing": (
        c_void_p,
        [POINTER(c.Membership), POINTER(c.Options), POINTER(c.LocalOptions), _ERROR],
    ),
    "p4reduce_shared_new": (c_void_p, [c_size_t, _ERROR]),
    "p4reduce_shared_free": (None, [c_void_p]),
    "p4reduce_submit": (c_int, [c_void_p, POINTER(c.Request), POINTER(c_void_p), _ERROR]),
    "p4reduce_run": (c_int, [c_void_p, POINTER(c.Request), c_double, POINTER(c_int), _ERROR]),
    "p4reduce_await": (c_int, [c_void_p, c_void_p, c_double, _ERROR]),
    "p4reduce_forget": (None, [c_void_p, c_void_p]),
    "p4reduce_next_ended": (c_void_p, [c_void_p, c_double, _ERROR]),
    "p4reduce_fail": (None, [c_void_p, c_char_p]),
    "p4reduce_abort": (None, [c_void_p, c_int, c_int32, c_char_p]),
    "p4reduce_unanswered": (c_int32, [c_void_p]),
    "p4reduce_counted": (None, [c_void_p, c_uint32, c_uint32, c_char_p]),
    "p4reduce_hold": (c_uint64, [c_void_p, c_uint64]),
    "p4reduce_await_held": (c_int, [c_void_p, c_uint64, POINTER(c.Held), c_double]),
    "p4reduce_go_on": (None, [c_void_p, c_uint32, c_uint32]),
    "p4reduce_suspend": (c_int64, [c_void_p, c_uint32, POINTER(c_uint32), c_size_t]),
    "p4reduce_move": (None, [c_void_p, c_uint32, c_uint32, POINTER(c_uint32), POINTER(c_uint32), c_size_t]),
    "p4reduce_take_most_slots": (c_uint32, [c_void_p]),
    "p4reduce_failure": (c_int, [c_void_p, _ERROR]),
    "p4reduce_progress": (None, [c_void_p, c_char_p, c_size_t]),
    "p4reduce_awaited": (None, [c_void_p, c.Ranks]),
    "p4reduce_describe": (None, [c_void_p, c_char_p, c_size_t]),
    "p4reduce_get_stats": (None, [c_void_p, POINTER(c.Stats)]),
    "p4reduce_close": (None, [c_void_p]),
    "p4reduce_free": (None, [c_void_p]),
    "p4reduce_scan": (c_int, [c_char_p, c_uint32, c_void_p, c_uint64, c_uint32, c_void_p]),
    "p4reduce_quantise": (
        c_int,
        [c_char_p, c_uint32, c_uint32, c_void_p, c_uint64, c_uint32, c_uint32, c_uint32, c_uint64, c_void_p],
    ),
    "p4reduce_dequantise": (
        c_int,
        [c_char_p, c_uint32, c_uint32, c_void_p, c_uint64, c_uint32, c_uint32, c_void_p],
    ),
    "p4reduce_find_indices": (c_uint64, [c_void_p, c_uint64, c_uint32, c_void_p]),
    "p4reduce_encode_indices": (None, [c_void_p, c_uint64, c_uint32, c_void_p]),
    "p4reduce_decode_indices": (c_int, [c_void_p, c_uint64, c_uint64, c_uint32, c_uint64, c_void_p]),
    "p4reduce_union_indices": (c_uint64, [c_void_p, c_void_p, c_uint32, c_void_p, c_uint64, c_void_p]),
    "p4reduce_locate_indices": (None, [c_void_p, c_void_p, c_uint64, c_void_p]),
}


class LibraryError(P4ReduceError):
    """The C library cannot be used; the message says why."""


class UnusableLibraryError(LibraryError):
    """The C library is there but cannot be used: it is damaged, or of another version than this Python."""


@cache
def library() -> Any:
    """Load the C library and return its functions. Raises LibraryError if there is none that fits."""
    path = find()
    try:
        loaded = ctypes.CDLL(str(path))
        functions = declared(loaded, _FUNCTIONS)
    except (OSError, AttributeError) as error:
        raise UnusableLibraryError(f"the C library {path} cannot be loaded: {error}") from error
    abi = functions["p4reduce_abi"]()
    if abi != c.ABI:
        raise UnusableLibraryError(f"the C library {path} has ABI {abi}, this Python needs {c.ABI}")
    return SimpleNamespace(**functions)  # only these: a call of a function without its types would corrupt memory


def declared(loaded: ctypes.CDLL, types: Mapping[str, tuple[Any, list[Any]]]) -> dict[str, Any]:
    """Return functions of the library by name, each with the types of its result and its arguments."""
    functions = {name: getattr(loaded, name) for name in types}
    for name, function in functions.items():
        function.restype, function.argtypes = types[name]
    return functions


def find() -> Path:
    """Return the path of the C library. Raises LibraryError if it was not installed."""
    named = os.environ.get("P4REDUCE_LIBRARY")
    if named:
        return Path(named)
    return _installed(NAME)


def headers() -> Path:
    """Return the folder of the installed C headers. Raises LibraryError if there are none.

    Another build of the library (P4REDUCE_LIBRARY) has no headers beside it.
    """
    return _installed("include/p4reduce.h").parent


def _installed(name: str) -> Path:
    # An editable install has Python files and built files in two different folders of the package's path.
    for folder in p4reduce.__path__:
        path = Path(folder, "fastpath", name)
        if path.is_file():
            return path
    raise LibraryError(f"{name} was not installed: this p4reduce was built without C (P4REDUCE_PURE=1)")


def simd_in_use() -> str:
    """Return the instruction set that the library uses here.

    Raises ValueError if P4REDUCE_SIMD names one that this processor lacks.
    """
    used: str = library().p4reduce_simd().decode()
    wanted = os.environ.get("P4REDUCE_SIMD")
    if wanted and wanted != used:
        raise ValueError(f"P4REDUCE_SIMD={wanted!r}: this processor has {', '.join(simd_sets())}")
    return used


def simd_sets() -> list[str]:
    """Return the instruction sets that this processor has, the one in use first."""
    used = library().p4reduce_simd().decode()
    others = ("avx512", "avx2", "neon", "portable")

    def has(simd: str) -> bool:
        status: int = library().p4reduce_scan(simd.encode(), c.TYPES["float32"], None, 0, 1, None)
        return status == c.OK

    return [used, *(simd for simd in others if simd != used and has(simd))]


def request_of(operation: Operation, name: bytes | None = None) -> c.Request:
    """Return an operation as a C structure."""
    request = c.Request(
        ctypes.sizeof(c.Request),
        _CODES[operation.data.dtype],
        *addresses(operation.data),
        operation.data.size,
        operation.dtype.encode(),
        operation.reduce_op.encode(),
        operation.divisor,
        c.WIRES[operation.wire],
        0.0,  # no timeout
        name,
    )
    request.read_only, request.zeros = operation.read_only, c.ZEROS[operation.zeros]
    if operation.residual is not None:
        request.residual = ctypes.pointer(ctypes.c_float.from_address(*addresses(operation.residual)))
    return request


def to_c(membership: Membership) -> c.Membership:
    """Return a membership as a C structure."""
    derived = {"peer_count": len(membership.peers), "sharing": bool(membership.hosts)}
    plain = {name: value for name, value in asdict(membership).items() if name != "more_jobs"}
    return c.Membership.make(**plain, **derived)


def to_stats(stats: c.Stats) -> Stats:
    """Return statistics as a Python object."""
    return Stats(**{name: getattr(stats, name) for name in c.STATS})


def to_exception(error: c.Error) -> Exception:
    """Return the Python exception for an error of the library."""
    message = error.message.decode(errors="replace")
    if error.status == c.INVALID:
        return ValueError(message)
    if error.status == c.NO_MEMORY:
        return MemoryError(message)
    if error.status == c.NETWORK:
        return TransportError(message)
    if error.status == c.MISMATCH:
        return MismatchError(message)
    if error.status == c.ABORTED:
        return JobAborted(message, rank=error.rank if error.rank >= 0 else None)
    if error.status == c.TIMEOUT:
        return CollectiveTimeout(message, awaited=ranks(error.awaited))
    return P4ReduceError(message)


def ranks(bitmap: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks in a bitmap of 32-bit words, lowest first."""
    return tuple(32 * at + bit for at, word in enumerate(bitmap) if word for bit in range(32) if word >> bit & 1)


def check(status: int, error: c.Error) -> None:
    """Raise `error` as a Python exception, unless the library's function returned OK."""
    if status != c.OK:
        raise to_exception(error)


def type_code(dtype: np.dtype[Any]) -> int:
    return c.TYPES[type_name(dtype)]


_CODES = {np.dtype(dtype): type_code(np.dtype(dtype)) for dtype in SUPPORTED}
