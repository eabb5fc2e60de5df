# SPDX-License-Identifier: Apache-2.0
"""The process that impairs a link."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

from p4reduce_topos.emulation.link_emulator import Direction


def passed(port: int, seed: int) -> list[int]:
    """Return which of 64 frames pass a direction that loses half of them."""
    sent: list[bytes] = []
    to: Any = SimpleNamespace(number=port, send=sent.append)
    options = Namespace(seed=seed, delay=0.0, jitter=0.0, loss=0.5, duplicate=0.0, corrupt=0.0, unchecked=False)
    direction = Direction(options, to)
    for number in range(64):
        direction.enqueue(bytes(13) + bytes([number]), 0.0)
    direction.send_due(1.0)
    return [frame[-1] for frame in sent]


def test_each_direction_of_each_link_loses_other_frames() -> None:
    losses = [passed(port, seed) for seed in (1, 2) for port in (1, 2)]
    assert all(one != other for index, one in enumerate(losses) for other in losses[:index])
    assert passed(1, 1) == losses[0]
