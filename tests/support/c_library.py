# SPDX-License-Identifier: Apache-2.0
"""A test of the C library is skipped where it is not installed, and says so."""

from __future__ import annotations

import pytest

from p4reduce.fastpath.library import LibraryError, find, library


def needs_c_library() -> None:
    """Raises LibraryError if the library is there, but of no use."""
    try:
        find()
    except LibraryError as error:
        pytest.skip(f"needs the C library: {error}")
    library()
