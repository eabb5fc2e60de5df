# SPDX-License-Identifier: Apache-2.0
"""The tests' BF Runtime server answers as the SDE's sources say: ports, the chip, and notices of links.

Each test names the function of `bf-drivers/src` where a reader would not find it at once.
"""

from __future__ import annotations

import grpc
import pytest

from tests.support.bfrt.plain_client import PlainClient, drained
from tests.support.bfrt.server import Server
from tests.support.dataplane import frames

from .entries import HERE, THERE, connect, mac, port_entry

pytestmark = pytest.mark.p4c


def test_ports(server: Server, client: PlainClient) -> None:
    assert client.write(("INSERT", port_entry(client, 4, port_enable=None))) == [""]
    key = client.entry("$PORT", {"$DEV_PORT": 4})
    values = client.values(client.read(key)[0])
    assert (
        values.items()
        >= {
            "$SPEED": "BF_SPEED_100G",
            "$FEC": "BF_FEC_TYP_NONE",
            "$N_LANES": 4,
            "$PORT_ENABLE": False,
            "$PORT_UP": False,
            "$PORT_NAME": "2/0",
        }.items()
    )
    assert client.write(("MODIFY", client.entry("$PORT", {"$DEV_PORT": 4}, {"$PORT_ENABLE": True}))) == [""]
    up = client.entry("$PORT", {"$DEV_PORT": 4}, {"$PORT_UP": True})
    assert client.values(client.read(up)[0]) == {"$PORT_UP": True}
    server.device.ports.set_partner(4, False)
    assert client.values(client.read(up)[0]) == {"$PORT_UP": False}
    assert [client.values(one)["$PORT_NAME"] for one in client.read(client.entry("$PORT"))] == ["2/0"]
    assert client.write(("DELETE", key)) == [""]
    assert client.read(client.entry("$PORT")) == []
    assert client.try_read(key) == ([], ["NOT_FOUND Entry not found in table:$PORT Object not found"])
    (recirculation,) = client.read(client.entry("$PORT", {"$DEV_PORT": 68}, {"$PORT_NAME": ""}))
    assert client.values(recirculation) == {"$PORT_NAME": "recirc"}
    assert client.write(("DELETE", key)) == [""]  # that it is not there is no error (bf_pm_port_delete)
    assert client.write(("INSERT", port_entry(client, 4)), ("DELETE", client.entry("$PORT"))) == ["", ""]
    assert server.device.ports.added == {}


def test_a_port_that_is_added_twice_stays_as_it_is(server: Server, client: PlainClient) -> None:
    """`bf_pm_port_add_with_lanes` leaves speed and FEC alone; the rest is set."""
    client.write(("INSERT", port_entry(client, 4, port_enable=False)))
    assert client.write(("INSERT", port_entry(client, 4, speed="BF_SPEED_40G"))) == [""]
    port = server.device.ports.added[4]
    assert (port.speed, port.enabled) == ("100G", True)
    assert server.device.remarks == ["$PORT: port 4 is added again with another speed or FEC"]


@pytest.mark.parametrize(
    ("number", "fields"),
    [
        (4, {"fec": None}),
        (4, {"speed": "100G"}),
        (4, {"fec": "BF_FEC_TYP_FIRECODE"}),  # not for 100G
        (4, {"speed": "BF_SPEED_400G", "fec": "BF_FEC_TYP_REED_SOLOMON"}),  # not on Tofino 1
        (5, {}),  # a second channel does not have four lanes
        (1, {"speed": "BF_SPEED_10G"}),  # a lane of port 0
        (300, {}),  # no port of the board
        (4, {"auto_negotiation": "on"}),
    ],
)
def test_ports_that_are_refused(client: PlainClient, number: int, fields: dict[str, object]) -> None:
    client.write(("INSERT", port_entry(client, 0)))
    answer = "INVALID_ARGUMENT Table Add failed table:$PORT Invalid arguments"
    assert client.write(("INSERT", port_entry(client, number, **fields))) == [answer]


def test_a_port_that_the_hardware_refuses(server: Server, client: PlainClient) -> None:
    server.device.ports.refused.add(8)
    answers = client.write(("INSERT", port_entry(client, 4)), ("INSERT", port_entry(client, 8)))
    assert answers == ["", "UNKNOWN Table Add failed table:$PORT HW access fails"]


def test_names_of_ports(client: PlainClient) -> None:
    (entry,) = client.read(client.entry("$PORT_STR_INFO", {"$PORT_NAME": "17/2"}))
    assert client.values(entry) == {"$DEV_PORT": 130}
    (entry,) = client.read(client.entry("$PORT_HDL_INFO", {"$CONN_ID": 33, "$CHNL_ID": 0}))
    assert client.values(entry) == {"$DEV_PORT": 64}
    unknown = client.entry("$PORT_STR_INFO", {"$PORT_NAME": "99/0"})
    answer = "INVALID_ARGUMENT Entry not found in table:$PORT_STR_INFO Invalid arguments"
    assert client.try_read(unknown) == ([], [answer])
    unknown.table_flags.from_hw = True
    answer = "UNIMPLEMENTED Entry not found in table:$PORT_STR_INFO Operation not supported"
    assert client.try_read(unknown) == ([], [answer])
    assert len(client.read(client.entry("$PORT_STR_INFO"))) == 132


def test_the_device(client: PlainClient) -> None:
    """The table has a default entry only."""
    wanted = client.entry("tf1.dev.device_configuration")
    wanted.is_default_entry = True
    values = client.values(client.read(wanted)[0])
    assert (values["num_pipes"], values["pcie_cpu_port"], values["eth_cpu_port_list"]) == (2, 192, [64, 65, 66, 67])
    assert (values["num_front_ports"], values["recirc_port_list"]) == (132, [*range(68, 72), *range(196, 200)])
    wanted.is_default_entry = False
    assert client.try_read(wanted)[1] == [
        "UNIMPLEMENTED Table key allocation failed. table:tf1.dev.device_configuration Operation not supported"
    ]


def test_recirculation(client: PlainClient) -> None:
    """Tofino 1's ports 68 to 71 always recirculate, 64 while it is not a port (`pipe_mgr_tof_set_recirc_16_en`)."""
    table = "tf1.pktgen.port_cfg"

    def enabled(number: int) -> object:
        wanted = client.entry(table, {"dev_port": number}, {"recirculation_enable": False})
        return client.values(client.read(wanted)[0])["recirculation_enable"]

    def set_enabled(number: int, on: bool) -> list[str]:
        return client.write(("MODIFY", client.entry(table, {"dev_port": number}, {"recirculation_enable": on})))

    assert (enabled(68), enabled(64), enabled(0)) == (True, False, False)
    assert set_enabled(68, True) == set_enabled(192, True) == [""]
    assert enabled(192) is True
    failed = f"Table Entry modify failed table:{table}"
    assert set_enabled(0, True) == set_enabled(300, True) == [f"INVALID_ARGUMENT {failed} Invalid arguments"]
    client.write(("INSERT", port_entry(client, 64, speed="BF_SPEED_10G")))
    assert set_enabled(64, True) == [f"UNAVAILABLE {failed} In use"]
    entry = client.entry(table, {"dev_port": 64}, {"recirculation_enable": True})
    assert client.write(("INSERT", entry)) == [f"UNIMPLEMENTED Table Add failed table:{table} Operation not supported"]


def test_packets_pass_ports_that_are_up(server: Server, client: PlainClient) -> None:
    client.write(("INSERT", mac(client, int(THERE.mac.replace(":", ""), 16), 8)))
    frame = frames.udp_frame(HERE, THERE, b"a frame")
    device = server.device
    assert device.process(4, frame) == []
    client.write(("INSERT", port_entry(client, 4)), ("INSERT", port_entry(client, 8, port_enable=False)))
    assert device.process(4, frame) == []
    client.write(("MODIFY", client.entry("$PORT", {"$DEV_PORT": 8}, {"$PORT_ENABLE": True})))
    assert device.process(4, frame) == [(8, frame)]
    device.ports.set_partner(8, False)
    assert device.process(4, frame) == []
    assert device.undeliverable == 3


def test_port_notifications(server: Server) -> None:
    """They need the flag at subscription, the attribute, and a bound client (`portstatuschg_callback`)."""
    with connect(server) as client, connect(server, number=8) as other:
        client.subscribe(port_changes=True)
        client.bind()
        client.write(("INSERT", port_entry(client, 4)))
        assert list(drained(client.messages)) == []
        assert client.write(client.notify_port_changes()) == [""]
        server.device.ports.set_partner(4, False)
        notification = client.message().port_status_change_notification
        assert notification.port_up is False
        assert notification.table_entry.key == client.entry("$PORT", {"$DEV_PORT": 4}).key
        server.device.ports.set_partner(4, True)
        assert client.message().port_status_change_notification.port_up is True
        other.subscribe()
        with pytest.raises(grpc.RpcError):  # other is not bound
            other.write(other.notify_port_changes())
        assert client.write(client.notify_port_changes(False)) == [""]
        server.device.ports.set_partner(4, False)
        assert list(drained(client.messages)) == []


def test_notifications_that_no_client_gets(server: Server) -> None:
    """The cookie of a callback has 24 bits of the client's number (`formCookieFromDeviceAndClient`)."""
    with connect(server, number=1 << 24 | 7) as client:
        client.subscribe(port_changes=True)
        client.bind()
        assert client.write(client.notify_port_changes()) == [""]
        client.write(("INSERT", port_entry(client, 4)))
        assert list(drained(client.messages)) == []


def test_notifications_without_the_flag(client: PlainClient) -> None:
    text = "Port status change notifications are not enabledfor client 7 Invalid arguments"
    assert client.write(client.notify_port_changes()) == [f"INVALID_ARGUMENT {text}"]
