# SPDX-License-Identifier: Apache-2.0
"""Tests of the worker run with Python's and the C worker side by side; without the C library, with Python's alone."""

from __future__ import annotations

import pytest

from p4reduce.fastpath.library import LibraryError, find, library
from tests.support.protocol import worker_pair


@pytest.fixture
def each_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        find()
    except LibraryError:
        return
    library()
    monkeypatch.setattr(worker_pair, "both", True)
