# SPDX-License-Identifier: Apache-2.0
"""The C library with all its functions, for tests. A test is skipped if the library is not installed."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from p4reduce.fastpath import structures as c
from p4reduce.fastpath.library import LibraryError, declared, find, library


class Payload(ctypes.Structure):
    bytes: int
    length: int
    _fields_: ClassVar = [("bytes", c_void_p), ("length", c_size_t)]


_ERROR = POINTER(c.Error)
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "p4reduce_worker_new": (c_void_p, [POINTER(c.Membership), POINTER(c.Timing), _ERROR]),
    "p4reduce_worker_free": (None, [c_void_p]),
    "p4reduce_worker_submit": (c_int, [c_void_p, POINTER(c.Request), c_double, _ERROR]),
    "p4reduce_worker_receive": (None, [c_void_p, c_char_p, c_size_t, c_double]),
    "p4reduce_worker_receive_marked": (None, [c_void_p, c_char_p, c_size_t, c_double]),
    "p4reduce_worker_tick": (None, [c_void_p, c_double]),
    "p4reduce_worker_take": (c_size_t, [c_void_p, POINTER(Payload), c_size_t]),
    "p4reduce_worker_deadline": (c_double, [c_void_p]),
    "p4reduce_worker_awaited": (c_int, [c_void_p, c.Ranks]),
    "p4reduce_worker_unanswered": (c_int32, [c_void_p, c_double, c_double]),
    "p4reduce_worker_is_impossible": (c_int, [c_void_p, c_uint32, c_uint32]),
    "p4reduce_worker_idle": (c_int, [c_void_p]),
    "p4reduce_worker_next_first_seq": (c_uint32, [c_void_p]),
    "p4reduce_worker_begin_anew": (c_int, [c_void_p, c_uint32, c_uint32, _ERROR]),
    "p4reduce_worker_set_aggregators": (c_int, [c_void_p, c_uint32, _ERROR]),
    "p4reduce_worker_suspend": (c_size_t, [c_void_p, c_uint32, POINTER(c_uint32), c_size_t]),
    "p4reduce_worker_rewind": (c_int, [c_void_p, c_uint32, POINTER(c_uint32), c_size_t, c_double, _ERROR]),
    "p4reduce_worker_fail": (None, [c_void_p, c_char_p]),
    "p4reduce_worker_failure": (c_int, [c_void_p, _ERROR]),
    "p4reduce_worker_stats": (None, [c_void_p, POINTER(c.Stats)]),
    "p4reduce_worker_hello": (c_size_t, [c_void_p, c_uint64, c_char_p, c_size_t]),
    "p4reduce_widen": (c_int, [c_char_p, c_uint32, c_void_p, c_uint64, c_void_p]),
    "p4reduce_narrow": (c_int, [c_char_p, c_uint32, c_void_p, c_uint64, c_void_p]),
    "p4reduce_fingerprint": (c_uint32, [c_uint32, c_char_p, c_char_p, c_uint64]),
}
"""The functions that only tests call from Python."""


@cache
def whole_library() -> Any:
    """Return the library with all its functions."""
    return SimpleNamespace(**vars(library()), **declared(ctypes.CDLL(str(find())), FUNCTIONS))


def needs_c_library() -> None:
    """Skip the test if the library is not installed. Raises LibraryError if it is installed but unusable."""
    try:
        find()
    except LibraryError as error:
        pytest.skip(f"needs the C library: {error}")
    library()
