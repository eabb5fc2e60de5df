# SPDX-License-Identifier: Apache-2.0
"""Python's declarations of the native switch's C code agree with its headers."""

from __future__ import annotations

from p4reduce_targets.native import library, numbers
from tests.support.c_headers import NATIVE, constants, functions, is_declared


def test_functions() -> None:
    there = functions("NATIVE_API", NATIVE / "native.h")
    assert there.keys() == library._FUNCTIONS.keys()
    for name, (result, arguments) in library._FUNCTIONS.items():
        c_result, c_arguments = there[name]
        assert is_declared(c_result, 0, result, {}), f"{name} returns {c_result}, not {result}"
        assert len(arguments) == len(c_arguments), name
        for (kind, argument, length), python in zip(c_arguments, arguments, strict=True):
            assert is_declared(kind, length, python, {}), f"{argument} of {name} is {kind}, not {python}"


def test_limits() -> None:
    assert constants(NATIVE / "plane.h")["MAX_THREADS"] == numbers.MAX_THREADS
    assert constants(NATIVE / "tables.h")["MAX_ARGUMENTS"] == numbers.MAX_ARGUMENTS
    assert constants(NATIVE / "native.h")["NATIVE_MAX_FRAME"] == numbers.MAX_FRAME
    assert constants(NATIVE / "context.h")["MAX_FRAME"] <= numbers.MAX_FRAME
