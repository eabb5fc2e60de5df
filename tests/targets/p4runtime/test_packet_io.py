# SPDX-License-Identifier: Apache-2.0
"""Packet-out and packet-in, without ports: what goes out at the CPU port comes in."""

from __future__ import annotations

import pytest
from finsy.proto import p4r

from .client import INSERT, MODIFY, PACKET_OUT, Client, action, counter_entry, default_entry, group_entry

CPU_PORT = 510
FRAME = bytes(range(14)) + b"payload of a frame, longer than sixty bytes so that nobody pads it"


def number_of(value: bytes) -> int:
    return int.from_bytes(value, "big")


def test_metadata_goes_there_and_back(primary: Client) -> None:
    primary.write(MODIFY, default_entry("ternary_table", action("set_tag", 0xABC, 0)))
    primary.packet_out(FRAME, kind=5, egress_port=CPU_PORT, padding=0, group=0)
    payload, metadata = primary.packet_in()
    assert payload == FRAME
    assert metadata == {"padding": b"\x00", "ingress_port": b"\x01\xfe", "tag": b"\x0a\xbc", "rest": b"\x00"}
    counts = primary.read_counts(counter_entry("cells"))
    assert {index: count[0] for index, count in counts.items() if count[0]} == {5: 1}


def test_metadata_that_is_left_out_is_0(primary: Client) -> None:
    primary.packet_out(FRAME, egress_port=CPU_PORT)
    assert primary.packet_in()[0] == FRAME


def test_a_group_with_the_cpu_port(primary: Client) -> None:
    primary.write(INSERT, group_entry(3, (CPU_PORT, 1), (CPU_PORT, 2), (4, 3)))
    primary.packet_out(FRAME, group=3)
    assert sorted(number_of(primary.packet_in()[1]["rest"]) for _ in range(2)) == [1, 2]
    assert primary.is_quiet()


def test_many_in_order(primary: Client) -> None:
    frames = [FRAME[:14] + index.to_bytes(2, "big") + FRAME[16:] for index in range(40)]
    for frame in frames:
        primary.packet_out(frame, egress_port=CPU_PORT)
    assert [primary.packet_in()[0] for _ in frames] == frames


@pytest.mark.parametrize("wrong", ["unknown metadata", "too wide"])
def test_a_packet_out_that_is_wrong_does_not_go(primary: Client, wrong: str, kind: str) -> None:
    request = p4r.StreamMessageRequest()
    request.packet.payload = FRAME
    request.packet.metadata.add(metadata_id=PACKET_OUT["egress_port"], value=CPU_PORT.to_bytes(2, "big"))
    if wrong == "too wide":
        request.packet.metadata.add(metadata_id=PACKET_OUT["kind"], value=b"\x08")
    else:
        request.packet.metadata.add(metadata_id=99, value=b"\x01")
    primary.send(request)
    if kind == "bmv2":
        assert primary.is_quiet()  # its stream errors are off by default
    else:
        error = primary.receive().error
        assert error.canonical_code == 3
        assert error.HasField("packet_out")
        assert not error.packet_out.packet_out.payload


def test_a_stream_that_said_nothing_does_not_send(primary: Client, address: str, kind: str) -> None:
    with Client(address, election_id=5) as stranger:
        stranger.open()
        stranger.packet_out(FRAME, egress_port=CPU_PORT)
        if kind == "bmv2":
            assert stranger.is_quiet()
        else:
            assert stranger.receive().error.canonical_code == 7
    assert primary.is_quiet()


def test_a_backup_neither_sends_nor_receives(primary: Client, address: str, kind: str) -> None:
    with Client(address, election_id=2) as other:
        other.become_primary()
        assert primary.standing() == (6, 2)
        primary.packet_out(FRAME, egress_port=CPU_PORT)
        if kind != "bmv2":
            error = primary.receive().error
            assert (error.canonical_code, error.WhichOneof("details")) == (7, "packet_out")
        other.packet_out(FRAME, egress_port=CPU_PORT)
        assert other.packet_in()[0] == FRAME
        assert other.is_quiet()
        assert primary.is_quiet()


@pytest.mark.bmv2_differs("BMv2 says nothing")
def test_messages_that_are_not_known(primary: Client) -> None:
    request = p4r.StreamMessageRequest()
    request.digest_ack.digest_id = 1
    primary.send(request)
    assert primary.receive().error.canonical_code == 12
