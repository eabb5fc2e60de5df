# SPDX-License-Identifier: Apache-2.0
"""A network whose process is killed leaves links in a namespace that others are in, too; the next one removes them."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from p4reduce.errors import P4ReduceError
from p4reduce_topos.topologies import two_racks
from tests.support.own_network import Namespace, ip
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.mininet, pytest.mark.root, pytest.mark.usefixtures("mininet")]

START_UP_S = 180.0
OWNER = """
import sys, time
from p4reduce_topos.emulation.network import Network
from p4reduce_topos.topologies import two_racks
with Network(two_racks.build(2)):
    print("there", flush=True)
    time.sleep(1000)
"""


def links() -> set[str]:
    return {name for _, name in socket.if_nameindex()}


def test_the_next_network_removes_what_a_dead_one_has_left_and_nothing_of_a_living_one(tmp_path: Path) -> None:
    from p4reduce_topos.emulation.network import Network

    with contextlib.closing(Namespace()) as namespace, namespace.entered():
        ip("link", "add", "leaf9-eth1", "type", "veth", "peer", "name", "theirs")  # somebody else's
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, env=environment) as owner:
            assert owner.stdout is not None
            try:
                assert owner.stdout.readline() == b"there\n"
                living = links()
                assert {"control", "leaf1-eth2", "spine1-eth1"} <= living
                with pytest.raises(P4ReduceError, match="another network runs in this network namespace"):
                    Network(two_racks.build(2)).__enter__()
                assert links() == living
            finally:
                owner.kill()
        # Hosts end with their owner, and the kernel takes their links when it has time.
        wait_until(lambda: "ctl-h1" not in links(), "the hosts' links to be gone", START_UP_S)
        assert {"control", "leaf1-eth2", "spine1-eth1"} <= links()
        with Network(two_racks.build(2)) as network:
            assert network.status()["switches"]
        assert links() == {"lo", "leaf9-eth1", "theirs"}
