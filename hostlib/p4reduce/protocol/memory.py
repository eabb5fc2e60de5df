# SPDX-License-Identifier: Apache-2.0
"""The addresses of NumPy arrays."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy.typing as npt


def addresses(*arrays: npt.NDArray[Any]) -> list[int]:
    """Where each array's values begin."""
    found = []
    for array in arrays:
        try:
            found.append(ctypes.addressof(ctypes.c_char.from_buffer(array)))  # type: ignore[arg-type]
        except (TypeError, ValueError):  # it is read-only or empty, or its dtype is none that a buffer can have
            found.append(array.ctypes.data)  # which takes three times as long
    return found


def address(array: npt.NDArray[Any]) -> int:
    """Where an array's values begin."""
    return addresses(array)[0]
