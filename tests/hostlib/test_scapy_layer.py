# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from p4reduce.protocol.constants import AGGREGATION_PORT, NO_KEY, Op
from p4reduce.protocol.packet import Codec, Packet

pytest.importorskip("scapy", reason="needs scapy")

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from p4reduce.transport.scapy_layer import P4Reduce

VALUES = np.arange(-64, 64, dtype=np.int32).reshape(2, 64)
PACKET = Packet(
    Op.RESULT, job=1, generation=2, worker=3, slot=5, seq=7, fingerprint=0xDEADBEEF, active=0b1010, present=0b1010,
    keys=[1, NO_KEY, 3, 4], values=VALUES,
)  # fmt: skip


def test_dissects_what_the_codec_packs() -> None:
    frame = bytes(Ether() / IP() / UDP(sport=AGGREGATION_PORT, dport=4242) / Codec().encode(PACKET))
    layer = Ether(frame)[P4Reduce]
    assert (layer.version, layer.job, layer.generation, layer.worker) == (1, 1, 2, 3)
    assert (layer.slot, layer.seq, layer.fingerprint) == (5, 7, 0xDEADBEEF)
    assert layer.sprintf("%op% %active%") == "RESULT lane1+lane3"
    assert layer.keys == [1, NO_KEY, 3, 4]
    assert layer.values == VALUES.reshape(-1).tolist()
    assert not layer.payload


def test_dissects_every_packet_of_a_chain() -> None:
    """The kernel may send and receive several packets as one datagram, a chain."""
    packets = [replace(PACKET, seq=seq) for seq in range(40)] + [
        replace(PACKET, present=2, active=2, values=VALUES[:1])
    ]
    content = b"".join(map(Codec().encode, packets))
    datagram = Ether(bytes(Ether() / IP() / UDP(sport=AGGREGATION_PORT, dport=4242) / content))[UDP]
    assert bytes(datagram.payload) == content
    layers = [datagram.getlayer(P4Reduce, nb) for nb in range(1, 42)]
    assert [layer.seq for layer in layers] == [*range(40), 7]
    assert [len(layer.values) for layer in layers] == [128] * 40 + [64]
    assert not layers[-1].payload


@pytest.mark.parametrize("kept", [34, 35, 40, 290, 545])
def test_dissects_what_there_is_of_a_packet_that_was_cut(kept: int) -> None:
    layer = P4Reduce(Codec().encode(PACKET)[:kept])
    assert (layer.seq, layer.keys) == (7, [1, NO_KEY, 3, 4])
    assert layer.values == VALUES.reshape(-1).tolist()[: (kept - 34) // 4]
    assert not layer.payload.haslayer(P4Reduce)


def test_what_follows_and_is_no_packet_is_left_alone() -> None:
    for rest in (bytes(50), b"" + bytes(40), Codec().encode(PACKET)[:20]):
        assert P4Reduce(Codec().encode(PACKET) + rest).payload.load == rest


def test_builds_what_the_codec_unpacks() -> None:
    layer = P4Reduce(
        op="RESULT", job=1, generation=2, worker=3, slot=5, seq=7, fingerprint=0xDEADBEEF, active="lane1+lane3",
        present="lane1+lane3", keys=[1, NO_KEY, 3, 4], values=VALUES.reshape(-1).tolist(),
    )  # fmt: skip
    assert bytes(layer) == Codec().encode(PACKET)


def test_follows_the_pipelines_dimensions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(P4Reduce, "lanes", 2)
    monkeypatch.setattr(P4Reduce, "block_size", 32)
    packet = Packet(Op.DATA, 1, 1, active=2, present=2, keys=[8, 9], values=np.ones((1, 32), np.int32))
    layer = P4Reduce(Codec(2, 32).encode(packet))
    assert layer.keys == [8, 9]
    assert layer.values == [1] * 32


@pytest.mark.parametrize("op", list(Op))
def test_knows_every_op(op: Op) -> None:
    assert P4Reduce(Codec().encode(Packet(op, 1, 1))).sprintf("%op%") == op.name
