# SPDX-License-Identifier: Apache-2.0
"""Tests of the C fast path are skipped where the library is not installed; they say so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from p4reduce.fastpath.library import LibraryError, find, library

for folder in ("protocol", "hostlib"):  # for the simulator and the helpers
    sys.path.append(str(Path(__file__).parents[1] / folder))


@pytest.fixture(autouse=True)
def _needs_the_library() -> None:
    try:
        find()
    except LibraryError as error:
        pytest.skip(f"needs the C library: {error}")
    library()
