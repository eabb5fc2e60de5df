# SPDX-License-Identifier: Apache-2.0
"""Tables with masks behind the BF Runtime server of the tests, in a program for BMv2, since ours has none of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from p4reduce_targets.sim import load
from tests.support.bfrt import bfruntime_pb2 as bfrt
from tests.support.bfrt import programs
from tests.support.bfrt.device import Device
from tests.support.bfrt.plain_client import PlainClient
from tests.support.bfrt.ports import BOARDS
from tests.support.bfrt.schema import derive, parse
from tests.support.bfrt.server import Server
from tests.targets.p4runtime.client import CONFIG, INFO
from tests.targets.p4runtime.fake_device import CPU_PORT

TERNARY, EXACT = "pipe.SwitchIngress.ternary_table", "pipe.SwitchIngress.exact_table"
SCHEMA = derive(INFO, {"SwitchIngress.numbers": (4, 1)})
ANY = (0, 0)


@pytest.fixture
def server() -> Iterator[Server]:
    config = bfrt.ForwardingPipelineConfig(p4_name="conformance", bfruntime_info=SCHEMA)
    config.profiles.add(profile_name="pipe", context=programs.context_of(INFO).dump(), binary=CONFIG)
    device = Device(BOARDS["tofino1"], load)
    device.install(config)
    with Server(device) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[PlainClient]:
    with PlainClient(server.address, parse(SCHEMA)) as client:
        client.subscribe()
        client.bind("conformance")
        to_cpu = client.entry(EXACT, {"dst": 2}, {"port": CPU_PORT}, "SwitchIngress.forward")
        assert client.write(("INSERT", to_cpu)) == [""]
        yield client


def tagging(client: PlainClient, source: tuple[int, int], priority: int | None, tag: int) -> bfrt.TableEntry:
    """Return an entry for source addresses, a value and a mask, which gives packets a tag."""
    key = {"src": source, "type": 0x1234} | ({} if priority is None else {"$MATCH_PRIORITY": priority})
    return client.entry(TERNARY, key, {"tag": tag, "other": 0}, "SwitchIngress.set_tag")


def tag_of(server: Server, source: int) -> int:
    """Return the tag of a packet, which the program shows to the CPU."""
    frame = (2).to_bytes(6, "big") + source.to_bytes(6, "big") + bytes.fromhex("1234") + bytes(46)
    ((port, sent),) = server.device.plane.process(1, frame)
    assert port == CPU_PORT
    return int.from_bytes(sent[2:4], "big") >> 4


def test_the_lowest_priority_wins(server: Server, client: PlainClient) -> None:
    """A `$MATCH_PRIORITY` is the place in the TCAM, of which the first row that matches wins."""
    assert tag_of(server, 0x51) == 1  # the program's default action
    assert client.write(
        ("INSERT", tagging(client, ANY, 20, 4)),
        ("INSERT", tagging(client, (0x50, 0xF0), 10, 2)),
        ("INSERT", tagging(client, (0x51, 0xFF), 15, 3)),
    ) == ["", "", ""]
    assert (tag_of(server, 0x51), tag_of(server, 0x61)) == (2, 4)
    assert client.write(("DELETE", tagging(client, (0x50, 0xF0), 10, 0))) == [""]
    assert (tag_of(server, 0x51), tag_of(server, 0x61)) == (3, 4)


def test_a_missing_priority_is_the_highest(server: Server, client: PlainClient) -> None:
    """It is 0, since a key begins with zeros."""
    assert client.write(("INSERT", tagging(client, (0x51, 0xFF), 1, 2)), ("INSERT", tagging(client, ANY, None, 3))) == [
        "",
        "",
    ]
    assert tag_of(server, 0x51) == 3


def test_masks_and_priorities_are_read_back(client: PlainClient) -> None:
    written = tagging(client, (0x50, 0xF0), 10, 2)
    assert client.write(("INSERT", written)) == [""]
    assert client.write(("MODIFY", tagging(client, (0x50, 0xF0), 11, 2))) == [
        f"NOT_FOUND Table Entry modify failed table:{TERNARY} Object not found"
    ]
    found = client.read(client.entry(TERNARY))
    assert [entry.is_default_entry for entry in found] == [False, True]
    assert found[0].key == written.key
    assert client.values(found[0]) == {"tag": 2, "other": 0}


def test_another_match_type_is_refused(client: PlainClient) -> None:
    wrong = tagging(client, ANY, 1, 2)
    wrong.key.fields[0].exact.value = bytes(6)
    (answer,) = client.write(("INSERT", wrong))
    assert answer.startswith("INVALID_ARGUMENT ")


def test_constant_entries_stay(client: PlainClient) -> None:
    table = "pipe.SwitchIngress.constant_table"
    entry = client.entry(table, {"type": 5}, {"tag": 1, "other": 0}, "SwitchIngress.set_tag")
    assert client.write(("INSERT", entry)) == [f"INVALID_ARGUMENT Table Add failed table:{table} Invalid arguments"]
