# SPDX-License-Identifier: Apache-2.0
"""The packet tests that p4c's test generator made for the paths of the program (p4src/paths.py), on each target.

The generator starts with empty registers, and knows no multicast: an answer to a group goes nowhere, as it does in a
switch without that group.
"""

from __future__ import annotations

import pytest

from tests.support.dataplane import frames
from tests.support.dataplane.stf import PacketTest, packet_tests
from tests.support.dataplane.switch import PLANES, SHIPPED, Outputs, Switch
from tests.support.dataplane.targets import CPU_PORT, Unavailable
from tests.support.dataplane.traffic import SHORTEST, TAGS
from tests.support.tofino.builds import bmv2

PACKET_OUT, PACKET_IN = 4, 6  # bytes of their headers
ON_INTERFACES = {"native-eth", "bmv2"}
SMALL_BLOCK = 32  # values a packet of the small build
CHANGING = {"started", "reset"}  # outcomes of a single packet that leave something in registers


def run(switch: Switch, test: PacketTest) -> list[tuple[int, bytes]]:
    """Run a test, and return all frames that come out. Packet-ins are as they leave the CPU port.

    The switch is as new afterwards.
    """
    switch.insert(*test.entries)
    if test.port == CPU_PORT:
        word = int.from_bytes(test.frame[:PACKET_OUT], "big")
        outputs = switch.packet_out(
            test.frame[PACKET_OUT:],
            through_pipeline=bool(word >> 31),
            egress_port=word >> 16 & 0x1FF,
            multicast_group=word & 0xFFFF,
        )
    else:
        outputs = switch.exchange((test.port, test.frame))
    switch.delete(*test.entries)
    if CHANGING & switch.counts().keys():
        switch.reinstall()
    return _frames(outputs)


def _frames(outputs: Outputs) -> list[tuple[int, bytes]]:
    sent = [(port, frame) for port in sorted(outputs.ports) for frame in outputs.ports[port]]
    for packet in outputs.packet_ins:
        head = packet.padding << 41 | packet.ingress_port << 32 | packet.bitmap
        sent.append((CPU_PORT, head.to_bytes(PACKET_IN, "big") + packet.payload))
    return sent


def passes_interfaces(test: PacketTest) -> bool:
    """Return whether the expected frames are long enough for an interface, and pass it unchanged."""
    sent = [pattern for port, pattern in test.expected if port != CPU_PORT]
    return all(len(pattern) >= 2 * SHORTEST and int(pattern[24:28], 16) not in TAGS for pattern in sent)


def check(switch: Switch, tests: list[PacketTest]) -> None:
    """Fail with all tests that end otherwise than the generator says."""
    wrong = []
    for test in tests:
        if switch.name in ON_INTERFACES and not passes_interfaces(test):
            continue
        outputs = run(switch, test)
        if not test.accepts(outputs):
            came = "".join(f"\n  port {port}: {frames.describe(frame)}" for port, frame in outputs) or " nothing"
            wrong.append(f"test {test.name}: {test.expected or 'nothing'} expected, but there came{came}")
    assert not wrong, f"{len(wrong)} of {len(tests)}\n" + "\n".join(wrong)


@pytest.mark.parametrize("target", PLANES)
def test_shipped_build(target: str) -> None:
    try:
        with Switch(target, SHIPPED) as switch:
            check(switch, packet_tests("shipped"))
    except Unavailable as missing:
        pytest.skip(str(missing))


@pytest.mark.p4c
@pytest.mark.parametrize("target", PLANES)
def test_small_build(target: str) -> None:
    try:
        with Switch(target, bmv2(SMALL_BLOCK)) as switch:
            check(switch, packet_tests("small"))
    except Unavailable as missing:
        pytest.skip(str(missing))
