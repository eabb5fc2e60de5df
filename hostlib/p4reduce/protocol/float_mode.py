# SPDX-License-Identifier: Apache-2.0
"""The floating-point mode that gives all ranks the same bits: rounding to nearest, and subnormals kept.

A program may change its thread's mode, as `torch.set_flush_denormal` does. A new thread inherits the mode of the thread
that creates it.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

_ROOM = 256  # bytes, more than any fenv_t has
_DEFAULT = ctypes.c_void_p(-1)  # FE_DFL_ENV of glibc and musl


def set_default() -> None:
    """Set this thread's mode to the one that programs start with."""
    _libm().fesetenv(_DEFAULT)


class DefaultMode:
    """A context in which this thread has the mode that programs start with. Its former mode is restored afterwards."""

    def __enter__(self) -> None:
        self._before = ctypes.create_string_buffer(_ROOM)
        _libm().fegetenv(self._before)
        _libm().fesetenv(_DEFAULT)

    def __exit__(self, *_: object) -> None:
        _libm().fesetenv(self._before)


@cache
def _libm() -> Any:
    own = ctypes.CDLL(None)
    return own if hasattr(own, "fesetenv") else ctypes.CDLL("libm.so.6")
