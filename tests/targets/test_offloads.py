# SPDX-License-Identifier: Apache-2.0
"""Interfaces of a switch hand over frames as they are on the wire."""

import array
import fcntl
import os
import shutil
import socket
import struct
import subprocess

import pytest

from p4reduce_targets import offloads

ETHTOOL_GGSO, ETHTOOL_GGRO = 0x23, 0x2B


def state(interface: str, command: int) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        value = array.array("I", [command, 0])
        fcntl.ioctl(control, offloads.SIOCETHTOOL, struct.pack("16sP", interface.encode(), value.buffer_info()[0]))
        return value[1]


@pytest.mark.root
def test_offloads_are_switched_off() -> None:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and ip (iproute2), to make an interface")
    name = f"p4r{os.getpid() % 100000}"
    subprocess.run(["ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}x"], check=True)
    try:
        assert state(name, ETHTOOL_GGSO) == 1
        offloads.switch_off(name)
        assert (state(name, ETHTOOL_GGSO), state(name, ETHTOOL_GGRO)) == (0, 0)
    finally:
        subprocess.run(["ip", "link", "del", name], check=True)


def test_an_interface_that_is_not_there_is_left_to_others_to_report() -> None:
    offloads.switch_off("nosuchinterface"[:15])
