# SPDX-License-Identifier: Apache-2.0
"""The addresses of NumPy arrays."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy.typing as npt


def addresses(*arrays: npt.NDArray[Any]) -> list[int]:
    """Return the address of each array's values."""
    found = []
    for array in arrays:
        try:
            found.append(ctypes.addressof(ctypes.c_char.from_buffer(array)))  # type: ignore[arg-type]
        except (TypeError, ValueError):  # it is read-only or empty, or a buffer cannot have its dtype
            found.append(array.ctypes.data)  # takes three times as long
    return found


def address(array: npt.NDArray[Any]) -> int:
    """Return the address of an array's values."""
    return addresses(array)[0]
