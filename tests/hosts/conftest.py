# SPDX-License-Identifier: Apache-2.0
"""Tests of ranks that share a stream are skipped where they cannot."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from p4reduce.fastpath.library import LibraryError, library
from p4reduce.local.host import digest

for folder in ("protocol", "hostlib"):  # for the model of the switch
    sys.path.append(str(Path(__file__).parents[1] / folder))


@pytest.fixture(autouse=True)
def _shares_memory() -> None:
    try:
        library()
    except LibraryError as error:
        pytest.skip(f"needs the C library: {error}")
    if not digest():
        pytest.skip("this machine does not let processes share memory")
