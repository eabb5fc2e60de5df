# SPDX-License-Identifier: Apache-2.0
"""Ports of a Tofino: what --port says, and what of it reaches the switch."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator

import pytest

from p4reduce_targets.bfrt import bfruntime_pb2 as pb
from p4reduce_targets.bfrt import ports as ports_module
from p4reduce_targets.bfrt.client import BfrtError, Client
from p4reduce_targets.bfrt.ports import PortRequest, TofinoPort, open_ports
from p4reduce_targets.bfrt.schema import Schema
from p4reduce_targets.ports import PortError
from tests.support.bfrt.ports import PortTable
from tests.support.bfrt.server import Server
from tests.support.waiting import wait_until
from tests.targets.bfrt import made_up, schemas


@pytest.fixture
def server() -> Iterator[Server]:
    """Return a server whose device has two pipes: its ports 2/0 and 3/0 are 4 and 8."""
    with Server(made_up.device()) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    client = Client(server.address, timeout_s=5)
    client.bind(made_up.CONFIG.p4_name)
    yield client
    client.close()


def opened(client: Client, *texts: str, cpu_port: int = 192, recirculation_port: int | None = None) -> list[TofinoPort]:
    annotations = [f"@cpu_port({cpu_port})"]
    annotations += [f"@recirculation_port({recirculation_port})"] if recirculation_port is not None else []
    program = pb.ForwardingPipelineConfig(bfruntime_info=schemas.outcomes(*annotations))
    schema = Schema.parse(client.running().non_p4_config.bfruntime_info)
    return open_ports(client, schema, program, [PortRequest.parse(text) for text in texts])


@pytest.mark.parametrize(
    ("text", "request_", "canonical"),
    [
        ("1/0:100G:rs", PortRequest("1/0", "100G", "rs"), "1/0:100G:rs"),
        ("128:25g", PortRequest("128", "25G"), "128:25G:none"),
        ("33/3:400G:RS:an", PortRequest("33/3", "400G", "rs", "an"), "33/3:400G:rs:an"),
        ("1/0:10G:none:no-an", PortRequest("1/0", "10G", "none", "no-an"), "1/0:10G:none:no-an"),
    ],
)
def test_reads_requests(text: str, request_: PortRequest, canonical: str) -> None:
    assert PortRequest.parse(text) == request_
    assert str(request_) == canonical


@pytest.mark.parametrize(
    "text",
    ["", "1/0", "1/0:", ":100G", "1/0:100", "1/0:1T", "1/0:100G:", "1/0:100G:crc", "1/0:100G:rs:on", "1:100G:rs:an:x"],
)
def test_refuses_other_texts(text: str) -> None:
    with pytest.raises(PortError, match=r"accepted are NAME:SPEED\[:FEC"):
        PortRequest.parse(text)


def test_adds_and_enables_ports(server: Server, client: Client) -> None:
    ports = server.device.ports
    ports.set_partner(4, present=False)
    found = opened(client, "2/0:100G:rs", "8:25G:none:an")
    assert [(port.number, port.name) for port in found] == [(4, "2/0"), (8, "8")]
    assert {number: (port.speed, port.fec, port.enabled) for number, port in ports.added.items()} == {
        4: ("100G", "RS", True),
        8: ("25G", "NONE", True),
    }
    assert ports.added[8].values == {5: "PM_AN_FORCE_ENABLE"}
    assert [port.interface.state() for port in found] == ["DOWN", "UP"]
    assert not server.device.remarks


def test_leaves_ports_that_are_as_they_should_be(server: Server, client: Client) -> None:
    """Adding one again would break its link. The server has two names for a FEC."""
    opened(client, "2/0:100G:rs", "3/0:25G:fc")
    server.calls.clear()
    opened(client, "2/0:100G:rs", "3/0:25G:fc")
    assert "write" not in server.calls


def test_adds_a_port_with_other_settings_anew(server: Server, client: Client) -> None:
    """The server would keep speed and FEC of one that is there."""
    opened(client, "2/0:100G:rs", "3/0:25G:fc")
    changes: list[int] = []
    server.device.ports.on_change = lambda number, _up: changes.append(number)
    opened(client, "2/0:40G", "3/0:25G:fc")
    assert set(changes) == {4}
    assert server.device.ports.added[4].speed == "40G"
    assert not server.device.remarks


def test_follows_the_states_of_links(server: Server, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports_module, "_POLL_S", 0.01)
    ports = server.device.ports
    one, other = opened(client, "2/0:100G:rs", "3/0:100G:rs")
    ports.set_partner(4, present=False)
    wait_until(lambda: one.interface.state() == "DOWN", "the link to be down")
    del ports.added[4]
    wait_until(lambda: one.interface.state() == "NOT_PRESENT", "the port to be missed")
    ports.set_partner(8, present=False)
    wait_until(lambda: other.interface.state() == "DOWN", "the other link to be down")


def test_the_thread_ends_with_the_connection(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """It also finds a server that hangs, while nobody writes."""
    monkeypatch.setattr(ports_module, "_POLL_S", 0.01)
    client = Client(server.address, timeout_s=0.3)
    client.bind(made_up.CONFIG.p4_name)
    opened(client, "2/0:100G:rs")
    server.faults.hang.set()
    wait_until(lambda: client.lost is not None, "the loss")
    wait_until(lambda: not any(thread.name == "bfrt-links" for thread in threading.enumerate()), "the thread to end")
    client.close()


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        (["2/0:100G", "99/0:10G"], "--port 99/0:10G:none: the front panel has no port 99/0"),
        (["2/0:100G", "4:10G"], "--port 4:10G:none: that is device port 4, as is --port 2/0:100G:none"),
        (["1/0:100G"], "device port 0 has no number in P4Runtime"),
        (["512:100G"], "--port 512:100G:none: the device ports that P4 programs can name are 1 to 511"),
        ([f"{1 << 32}:100G"], f"--port {1 << 32}:100G:none: the device ports that P4 programs can name are 1 to 511"),
        (["68:100G"], "device port 68 is one of the program's recirculation ports"),
    ],
)
def test_refuses_ports_that_cannot_be(server: Server, client: Client, texts: list[str], complaint: str) -> None:
    with pytest.raises(PortError, match=complaint):
        opened(client, *texts, recirculation_port=68)
    assert not server.device.ports.added


def test_says_which_port_the_switch_refuses(server: Server, client: Client) -> None:
    server.device.ports.refused.add(8)
    with pytest.raises(PortError, match=r"--port 3/0:10G:none: the switch refuses it \(Table Add failed"):
        opened(client, "2/0:100G:rs", "3/0:10G")
    with pytest.raises(PortError, match=r"--port 127:10G:none: the switch refuses it \(Table Add failed"):
        opened(client, "127:10G")


def test_says_which_setting_the_switch_did_not_take(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server answers with success then."""
    monkeypatch.setattr(PortTable, "_configure", lambda *_: None)
    with pytest.raises(PortError, match=r"did not take \$AUTO_NEGOTIATION PM_AN_FORCE_ENABLE, and has PM_AN_DEFAULT"):
        opened(client, "2/0:100G:rs:an")


@pytest.mark.parametrize("cpu_port", [192, 64])
def test_takes_the_boards_cpu_ports(client: Client, cpu_port: int) -> None:
    assert opened(client, "2/0:100G", cpu_port=cpu_port)


def test_an_ethernet_cpu_port_can_be_enabled(server: Server, client: Client) -> None:
    assert [port.number for port in opened(client, "33/0:10G", "2/0:100G", cpu_port=64)] == [4]
    assert set(server.device.ports.added) == {64, 4}


def test_refuses_a_program_for_another_cpu_port(client: Client) -> None:
    text = r"for CPU port 320, .* has 192 \(PCIe\) and 64, 65, 66, 67 \(Ethernet\): compile .*--cpu-port N "
    with pytest.raises(PortError, match=text):
        opened(client, "2/0:100G", cpu_port=320)


def test_warns_if_the_cpu_port_is_not_known(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ports_module, "_device", lambda *_: [])
    with caplog.at_level(logging.WARNING):
        assert opened(client, "2/0:100G", cpu_port=320)
    assert "does not tell which CPU ports the board has" in caplog.text
    with pytest.raises(BfrtError, match="does not tell how many pipes"):
        opened(client, "2/0:100G", recirculation_port=68)


def test_warns_if_the_schema_does_not_have_cpu_ports(
    server: Server, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    fixed = json.loads(server.device.fixed_schema)
    (configuration,) = (table for table in fixed["tables"] if table["table_type"] == "DevConfigure")
    del configuration["data"][:]
    server.device.fixed_schema = json.dumps(fixed).encode()
    assert opened(client, "2/0:100G", cpu_port=320)
    assert "does not tell which CPU ports the board has" in caplog.text


def test_lets_a_port_of_each_pipe_recirculate(server: Server, client: Client) -> None:
    # Ports 68 to 71 of this chip always do. The others can, where nobody has added a port of their four.
    opened(client, "2/0:100G", recirculation_port=68)
    opened(client, "2/0:100G", recirculation_port=64)
    assert server.device.ports.recirculating == {64, 128 + 64}


def test_says_which_port_cannot_recirculate(client: Client) -> None:
    with pytest.raises(PortError, match="device port 20 cannot recirculate, and the program's second pass uses it"):
        opened(client, "2/0:100G", recirculation_port=20)
