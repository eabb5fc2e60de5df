# SPDX-License-Identifier: Apache-2.0
"""The cluster that the examples run on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="needs torch")

from tests.support.cluster.stack import Stack, over_udp


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    with over_udp(target="native") as stack:
        yield stack
