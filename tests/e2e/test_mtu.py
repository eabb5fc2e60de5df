# SPDX-License-Identifier: Apache-2.0
"""Jobs with packets for links of MTU 9,000, and links that do not carry them."""

from __future__ import annotations

import pytest

from tests.support.cluster.calls import SHAPES, finish
from tests.support.cluster.stack import Setting, over_udp, over_wires

JUMBO = ("--mtu", "9000")


@pytest.mark.parametrize("backend", ["python", "c"])
@pytest.mark.parametrize("target", ["native", pytest.param("sim", marks=pytest.mark.slow)])
def test_large_packets(monkeypatch: pytest.MonkeyPatch, target: str, backend: str) -> None:
    monkeypatch.setenv("P4REDUCE_BACKEND", backend)
    with over_udp(*JUMBO, target=target) as stack:
        finish(Setting(stack), SHAPES, "jumbo", world_size=3, slots=16)


ON_CABLES = [
    "native",
    pytest.param("sim", marks=pytest.mark.slow),
    pytest.param("bmv2", marks=[pytest.mark.bmv2, pytest.mark.slow]),
]


@pytest.mark.root
@pytest.mark.parametrize("target", ON_CABLES)
def test_large_packets_on_cables(target: str) -> None:
    with over_wires(target, *JUMBO, mtu=9000) as stack:
        finish(Setting(stack), SHAPES[3:6], "cables", world_size=2, interfaces="worker", transport="raw", slots=8)


@pytest.mark.root
@pytest.mark.parametrize(
    ("narrow", "expected"),
    [
        (
            "port1",
            "rank 0 is refused at the switch 10.0.0.254:31314: its short packets arrive there, but not the job's",
        ),
        (
            "worker0",
            "the job's largest packets have 8270 bytes with IPv4 headers, more than the MTU of 'worker0', which is ",
        ),
    ],
)
def test_a_link_that_is_too_narrow_is_named(narrow: str, expected: str) -> None:
    with (
        over_wires("native", *JUMBO, mtu=9000, narrow=narrow) as stack,
        stack.ranks([], world_size=2, present=[0], interfaces="worker", transport="raw", timeout=60) as ranks,
    ):
        ends = ranks.wait_for_ends(60)
    assert expected in ends[0]["message"]
