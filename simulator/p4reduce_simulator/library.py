# SPDX-License-Identifier: Apache-2.0
"""The C library libp4reduce_simulator.so: where it is, and the types of its functions (simulator/csrc/simulator.h).

It is linked to the two libraries that ranks and switches load, so it runs the same code.
P4REDUCE_SIMULATOR_LIBRARY names another build of it.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import (
    POINTER,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_long,
    c_size_t,
    c_uint,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache
from typing import Any, ClassVar

import numpy as np

from p4reduce.fastpath import library as host_library
from p4reduce.fastpath import structures as c
from p4reduce_targets.native import library as native_library
from p4reduce_targets.native.library import LibraryMissing

NAME = "libp4reduce_simulator.so"


class Link(ctypes.Structure):
    _fields_: ClassVar = [
        *((name, c_uint64) for name in ("rate", "delay", "queue", "mark", "burst")),
        *((name, c_uint32) for name in ("overhead", "reserved")),
        ("loss", c_double),
    ]


class Host(ctypes.Structure):
    _fields_: ClassVar = [
        *((name, c_uint32) for name in ("ip", "reserved")),
        *((name, c_uint64) for name in ("receive", "receive_byte", "send", "send_byte", "scan_block")),
        *((name, c_double) for name in ("clock_offset", "clock_drift")),
    ]


class Switch(ctypes.Structure):
    _fields_: ClassVar = [(name, c_uint64) for name in ("delay", "receive", "send")]


class Aggregator(ctypes.Structure):
    _fields_: ClassVar = [
        ("ip", c_uint32),
        *((name, c_uint16) for name in ("udp_port", "job", "generation", "reserved")),
    ]


LINK_COUNTS = ("packets", "bytes", "dropped", "lost", "marked", "longest_wait")


class LinkCounts(ctypes.Structure):
    _fields_: ClassVar = [(name, c_uint64) for name in LINK_COUNTS]


class Operation(ctypes.Structure):
    rank: int
    status: int
    started: int
    ended: int
    _fields_: ClassVar = [("rank", c_uint32), ("status", c_int32), ("started", c_uint64), ("ended", c_uint64)]


class Messages(ctypes.Structure):
    """Messages, whose form is MESSAGE."""

    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("messages", "successors", "paths")),
        *((name, c_uint32) for name in ("count", "headers", "payload", "reserved")),
    ]


_WORDS = ("source", "path", "waits_for", "after", "after_count", "reserved")
_TIMES = ("started", "ended")
MESSAGE = np.dtype([("bytes", "u8"), *((name, "u4") for name in _WORDS), *((name, "u8") for name in _TIMES)])
PATH_END = 0xFFFFFFFF

_SIMULATION = c_void_p
_ERROR = POINTER(c.Error)
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "simulator_new": (_SIMULATION, [c_uint64, c_size_t]),
    "simulator_free": (None, [_SIMULATION]),
    "simulator_add_switch": (c_int, [_SIMULATION, c_void_p, c_void_p, POINTER(Switch)]),
    "simulator_add_host": (c_int, [_SIMULATION, POINTER(Host)]),
    "simulator_add_link": (c_int, [_SIMULATION, c_uint, c_uint, c_uint, c_uint, POINTER(Link)]),
    "simulator_add_rank": (
        c_int,
        [_SIMULATION, c_uint, POINTER(c.Membership), POINTER(c.Timing), POINTER(Aggregator), c_uint, _ERROR],
    ),
    "simulator_submit": (c_int, [_SIMULATION, c_uint, POINTER(c.Request), c_uint64]),
    "simulator_start_messages": (c_int, [_SIMULATION, POINTER(Messages)]),
    "simulator_record": (None, [_SIMULATION, c_uint64, c_uint64]),
    "simulator_capture": (c_int, [_SIMULATION, c_char_p, c_uint32]),
    "simulator_end_capture": (c_int, [_SIMULATION]),
    "simulator_run": (c_long, [_SIMULATION, c_uint64, c_uint64]),
    "simulator_now": (c_uint64, [_SIMULATION]),
    "simulator_events": (c_uint64, [_SIMULATION]),
    "simulator_digest": (c_uint64, [_SIMULATION]),
    "simulator_link_counts": (None, [_SIMULATION, c_uint, POINTER(LinkCounts)]),
    "simulator_recorded": (POINTER(c_uint64), [_SIMULATION, c_uint, POINTER(c_size_t)]),
    "simulator_operation": (None, [_SIMULATION, c_uint, POINTER(Operation), _ERROR]),
    "simulator_rank_stats": (None, [_SIMULATION, c_uint, POINTER(c.Stats)]),
    "simulator_strays": (c_uint64, [_SIMULATION]),
}


@cache
def library() -> Any:
    """Return the C library. Raises LibraryMissing if it, or one of the two that it needs, is not there."""
    folders = sys.modules["p4reduce_simulator"].__path__
    path = native_library.find("the simulator", "P4REDUCE_SIMULATOR_LIBRARY", folders, NAME)
    try:
        # The loader takes libraries that are loaded already, by their names.
        host_library.library()
        native_library.library()
        loaded = ctypes.CDLL(str(path))
        host_library.declared(loaded, _FUNCTIONS)
    except (OSError, AttributeError, host_library.LibraryError, LibraryMissing) as error:
        raise LibraryMissing(f"the simulator: {path} cannot be loaded: {error}") from error
    return loaded
