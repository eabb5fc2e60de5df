# SPDX-License-Identifier: Apache-2.0
"""Tests of ranks that share memory are skipped where they cannot."""

from __future__ import annotations

import pytest

from p4reduce.fastpath.library import LibraryError, library
from p4reduce.local.host import digest


@pytest.fixture(autouse=True)
def shares_memory() -> None:
    try:
        library()
    except LibraryError as error:
        pytest.skip(f"needs the C library: {error}")
    if not digest():
        pytest.skip("this machine does not let processes share memory")
