# SPDX-License-Identifier: Apache-2.0
"""Tests of the C fast path are skipped where the library is not installed; they say so."""

from __future__ import annotations

import pytest

from p4reduce.fastpath.library import LibraryError, simd_sets
from tests.support.c_library import needs_c_library
from tests.support.hostlib.udp_switch import switch
from tests.support.own_network import either_network, network

__all__ = ["either_network", "network", "switch"]  # fixtures

try:
    SETS = simd_sets()
except LibraryError:
    SETS = ["none"]


@pytest.fixture(autouse=True)
def _needs_the_library() -> None:
    needs_c_library()


@pytest.fixture(scope="session", params=SETS)
def simd(request: pytest.FixtureRequest) -> str:
    """Return each instruction set that this processor has."""
    return str(request.param)
