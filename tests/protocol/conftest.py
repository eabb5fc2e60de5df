# SPDX-License-Identifier: Apache-2.0
"""Tests of the worker run with Python's, and with Python's and the C worker side by side."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.c_library import needs_c_library
from tests.support.protocol import worker_pair


@pytest.fixture(params=["python", "both"])
def each_worker(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "both":
        needs_c_library()
    worker_pair.both = request.param == "both"
    yield
    worker_pair.both = False
