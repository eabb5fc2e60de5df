# SPDX-License-Identifier: Apache-2.0
"""The C library libp4reduce_native.so: where it is, and the types of its functions (targets/csrc/native.h).

The environment variable P4REDUCE_NATIVE_LIBRARY names another build of it, for example one with sanitizers.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from ctypes import POINTER, c_char_p, c_int, c_long, c_size_t, c_uint, c_uint16, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import p4reduce_targets
from p4reduce_targets.native.numbers import KEY_WORDS, MAX_ARGUMENTS

NAME = "libp4reduce_native.so"

Words = c_uint64 * 2
KeyWords = c_uint64 * KEY_WORDS
Arguments = c_uint64 * MAX_ARGUMENTS
_WORDS = POINTER(c_uint64)

_SWITCH = c_void_p
_PLANE = c_void_p
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "native_open": (_SWITCH, [c_uint]),
    "native_close": (None, [_SWITCH]),
    "native_add_udp": (c_int, [_SWITCH, c_uint, _WORDS, POINTER(c_uint16)]),
    "native_add_ethernet": (c_int, [_SWITCH, c_uint, c_char_p]),
    "native_add_socket": (c_int, [_SWITCH, c_uint, c_int]),
    "native_port_descriptor": (c_int, [_SWITCH, c_uint]),
    "native_start": (c_int, [_SWITCH]),
    "native_stop": (None, [_SWITCH]),
    "native_packet_out": (c_int, [_SWITCH, c_char_p, c_size_t]),
    "native_packet_in": (c_long, [_SWITCH, c_char_p]),
    "native_port_counts": (c_int, [_SWITCH, c_uint, _WORDS]),
    "native_lost_counts": (None, [_SWITCH, _WORDS]),
    "native_program": (c_long, [c_char_p, c_size_t]),
    "native_plane_create": (_PLANE, [_SWITCH, c_uint, c_uint, c_uint, c_uint, c_uint]),
    "native_plane_free": (None, [_SWITCH, _PLANE]),
    "native_run": (None, [_SWITCH, _PLANE]),
    "native_insert": (c_int, [_SWITCH, _PLANE, c_uint, _WORDS, c_uint, _WORDS]),
    "native_modify": (c_int, [_SWITCH, _PLANE, c_uint, _WORDS, c_uint, _WORDS]),
    "native_delete": (c_int, [_SWITCH, _PLANE, c_uint, _WORDS]),
    "native_set_miss": (c_int, [_SWITCH, _PLANE, c_uint, c_uint, _WORDS]),
    "native_set_group": (c_int, [_SWITCH, _PLANE, c_uint, POINTER(c_uint16), c_size_t]),
    "native_read_counter": (c_int, [_SWITCH, _PLANE, c_uint, c_uint, _WORDS]),
    "native_write_counter": (c_int, [_SWITCH, _PLANE, c_uint, c_uint, _WORDS]),
    "native_read_member": (c_int, [_SWITCH, _PLANE, _WORDS, _WORDS]),
    "native_write_member": (c_int, [_SWITCH, _PLANE, _WORDS, _WORDS]),
    "native_limit_hellos": (c_int, [_SWITCH, _PLANE, c_uint, _WORDS]),
    "native_set_time": (None, [_SWITCH, _PLANE, c_uint64]),
    "native_process": (c_long, [_SWITCH, _PLANE, c_uint, c_char_p, c_size_t, POINTER(c_void_p)]),
}


class LibraryMissing(RuntimeError):
    """A missing or unusable C library; the message says why."""


@cache
def library() -> Any:
    """Return the C library. Raises LibraryMissing if there is none, or it lacks a function."""
    path = find("target native", "P4REDUCE_NATIVE_LIBRARY", p4reduce_targets.__path__, f"native/{NAME}")
    try:
        loaded = ctypes.CDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise LibraryMissing(f"target native: {path} cannot be loaded: {error}") from error
    return loaded


def find(what: str, variable: str, folders: Iterable[str], name: str) -> Path:
    """Return the path that an environment variable has, or that of the file `name` in a package's folders.

    Raises LibraryMissing for `what` if it was not installed.
    """
    named = os.environ.get(variable)
    if named:
        return Path(named)
    # In an editable installation, Python files and built files are in different folders of the package.
    for folder in folders:
        path = Path(folder, name)
        if path.is_file():
            return path
    raise LibraryMissing(
        f"{what}: {Path(name).name} was not installed: this p4reduce was built without C (P4REDUCE_PURE=1); "
        "install it anew without that"
    )
