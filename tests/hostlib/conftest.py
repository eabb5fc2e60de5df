# SPDX-License-Identifier: Apache-2.0
"""What the host library's tests share. Helpers of other folders' tests are imported from there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "protocol"))  # for model_switch

from own_network import OwnNetwork, own_network


@pytest.fixture
def network() -> Iterator[OwnNetwork]:
    """A network namespace of the test's own, with a veth pair."""
    with own_network() as network:
        yield network
