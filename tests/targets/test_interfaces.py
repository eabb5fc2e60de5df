# SPDX-License-Identifier: Apache-2.0
"""Interfaces as ports of sim and native: they go, come back and get other names; and those that cannot be ports."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

import pytest

from p4reduce_targets.bmv2 import check_interfaces
from p4reduce_targets.dataplane import Call, Replica
from p4reduce_targets.native import NativeSwitch
from p4reduce_targets.p4runtime.gnmi import oper_status
from p4reduce_targets.ports import EthPort, PortError, PortInfo, PortSpec, check_ports, open_port
from p4reduce_targets.sim import load
from p4reduce_targets.switch import Switch
from tests.support.dataplane.switch import SHIPPED
from tests.support.dataplane.targets import looping
from tests.support.own_network import Namespace, ip, own_cables, wait_until_up
from tests.support.waiting import wait_until

pytestmark = pytest.mark.root

CPU_PORT = 510
TIMEOUT_S = 10.0
TARGETS = pytest.mark.parametrize("target", ["sim", "native"])
FRAME = b"\xff" * 6 + b"\x02\x00\x00\x00\x00\x05" + b"\x88\xb5" + bytes(range(50))


@contextmanager
def running(target: str, *names: str) -> Iterator[Mapping[int, PortInfo]]:
    """Run a switch that floods between ports 1, 2, ..., and yield its ports."""
    specs = [PortSpec(number, "eth", name) for number, name in enumerate(names, start=1)]
    made = (
        NativeSwitch(specs, CPU_PORT)
        if target == "native"
        else Switch(load, [open_port(spec) for spec in specs], CPU_PORT)
    )
    with made as switch:
        plane = switch.load((SHIPPED / "p4reduce.json").read_bytes())
        plane.set_group(1, [Replica(number, 0) for number in range(1, len(names) + 1)])
        plane.set_default("SwitchIngress.forwarding.mac_addresses", Call("SwitchIngress.forwarding.flood", (1,)))
        switch.run_program(plane)
        with looping(switch):
            yield switch.ports


def passes(source: str, destination: str) -> int:
    """Send a frame from one host to another until it arrives, and return how often it arrived."""
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as end,
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as begin,
    ):
        end.bind((destination, 3))
        begin.bind((source, 0))
        for number in range(100):
            begin.send(FRAME + bytes([number]))
            end.settimeout(0.2)
            try:
                while (got := end.recv(2000))[: len(FRAME)] != FRAME:
                    pass
            except TimeoutError:
                continue
            assert got[-1] <= number
            begin.send(FRAME + b"last")
            end.settimeout(TIMEOUT_S)
            while end.recv(2000) != FRAME + b"last":
                pass
            count = 1
            end.settimeout(0.2)
            try:
                while True:
                    count += end.recv(2000) == FRAME + b"last"
            except TimeoutError:
                return count
    raise AssertionError(f"nothing of {source} reached {destination}")


def connect(host: str, wire: str) -> None:
    ip("link", "add", host, "type", "veth", "peer", "name", wire)
    for end in (host, wire):
        ip("link", "set", end, "up")
    wait_until_up(host, wire)


@TARGETS
def test_an_interface_that_is_made_again(target: str, caplog: pytest.LogCaptureFixture) -> None:
    """Deleted, the port is told as gone; made again under its name, it passes frames both ways, each once."""
    with own_cables(2), running(target, "switch1", "switch2") as ports:
        assert passes("host1", "host2") == 1
        ip("link", "del", "switch1")
        wait_until(
            lambda: oper_status(ports[1]) == "NOT_PRESENT" and "switch1 is gone" in caplog.text, "port 1 to be seen so"
        )
        connect("host1", "switch1")
        wait_until(lambda: oper_status(ports[1]) == "UP", "port 1 to be seen so")
        assert (passes("host1", "host2"), passes("host2", "host1")) == (1, 1)
        assert oper_status(ports[2]) == "UP"
    assert "port 1: interface switch1 is there again" in caplog.text


@TARGETS
def test_an_interface_that_goes_to_another_namespace_and_back(target: str) -> None:
    with own_cables(2), closing(Namespace()) as other, running(target, "switch1", "switch2") as ports:
        ip("link", "set", "switch1", "netns", other.path)
        wait_until(lambda: oper_status(ports[1]) == "NOT_PRESENT", "port 1 to be seen so")
        back = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        with closing(os.fdopen(back)), other.entered():
            ip("link", "set", "switch1", "netns", f"/proc/{os.getpid()}/fd/{back}")
        ip("link", "set", "switch1", "up")
        wait_until(lambda: oper_status(ports[1]) == "UP", "port 1 to be seen so")
        assert passes("host1", "host2") == 1


@TARGETS
def test_a_port_follows_its_interface_through_other_names(target: str, caplog: pytest.LogCaptureFixture) -> None:
    """The state that is told is that of the interface which passes the frames, not of another that has its name now."""
    with own_cables(2), running(target, "switch1", "switch2") as ports:
        ip("link", "set", "switch1", "down")
        ip("link", "set", "switch1", "name", "renamed")
        wait_until(
            lambda: oper_status(ports[1]) == "DOWN" and "its interface switch1 is called renamed now" in caplog.text,
            "port 1 to be seen so",
        )
        ip("link", "set", "renamed", "up")
        wait_until_up("renamed")
        ip("link", "add", "switch1", "type", "veth", "peer", "name", "stranger")  # and stays down
        assert oper_status(ports[1]) == "UP"
        assert passes("host1", "host2") == 1


def test_a_port_does_not_take_the_interface_of_another() -> None:
    """It does not do so even if the other interface has the name that the port's own had."""
    with own_cables(2), closing(EthPort(1, "switch1")) as one, closing(EthPort(2, "switch2")) as other:
        ip("link", "set", "switch2", "down")
        ip("link", "del", "switch1")
        ip("link", "set", "switch2", "name", "switch1")
        ip("link", "set", "switch1", "up")
        wait_until_up("switch1")
        one.interface.refresh([other.interface])
        assert (one.interface.state(), other.interface.state()) == ("NOT_PRESENT", "UP")
        one.interface.refresh([])
        assert one.interface.state() == "UP"


@pytest.fixture
def cables() -> Iterator[None]:
    with own_cables(1):
        yield


REFUSED = [
    ("lo", r"port 1: interface 'lo' is the loopback.*veth pair.*udp:127\.0\.0\.1:PORT"),
    ("tun7", r"port 1: frames of interface 'tun7' have no Ethernet header .*a tap or one end of a veth pair"),
]


@pytest.mark.parametrize(("name", "message"), REFUSED)
@pytest.mark.usefixtures("cables")
def test_interfaces_without_ethernet_frames_are_refused(name: str, message: str) -> None:
    if name == "tun7":
        ip("tuntap", "add", name, "mode", "tun")
    with pytest.raises(PortError, match=message):
        EthPort(1, name)
    with pytest.raises(PortError, match=message):
        NativeSwitch([PortSpec(1, "eth", name)])
    with pytest.raises(PortError, match=message):
        check_interfaces([PortSpec(1, "eth", name)], CPU_PORT)


@pytest.mark.usefixtures("cables")
def test_a_tap_is_accepted() -> None:
    ip("tuntap", "add", "tap7", "mode", "tap")
    EthPort(1, "tap7").close()


@pytest.mark.parametrize("second", ["switch1", "other-name"])
@pytest.mark.usefixtures("cables")
def test_the_same_interface_twice_is_refused(second: str) -> None:
    ip("link", "property", "add", "dev", "switch1", "altname", "other-name")
    ports = [PortSpec(number, "eth", name) for number, name in enumerate(["switch1", "host1", second], start=1)]
    message = rf"port 1 \(eth:switch1\) and port 3 \(eth:{second}\) are the same interface"
    with pytest.raises(PortError, match=message):
        check_ports(ports, CPU_PORT)
    with pytest.raises(PortError, match=message):
        NativeSwitch(ports)
