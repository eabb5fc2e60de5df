# SPDX-License-Identifier: Apache-2.0
"""The switches that programs under torchrun use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cluster.stack import Stack, over_udp

pytest.importorskip("torch", reason="needs torch")


@pytest.fixture(scope="session", params=[pytest.param("sim", marks=pytest.mark.slow), "native"])
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    with over_udp(target=request.param) as stack:
        yield stack


@pytest.fixture(scope="session")
def native_stack() -> Iterator[Stack]:
    with over_udp(target="native") as stack:
        yield stack
