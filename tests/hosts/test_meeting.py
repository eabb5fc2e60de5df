# SPDX-License-Identifier: Apache-2.0
"""How ranks of a host meet: who is late keeps no other waiting, and is the one that is named."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from udp_switch import udp_switch

from p4reduce.errors import CollectiveTimeout, P4ReduceError
from p4reduce.local.sharing import SharingEngine, host_meeting
from p4reduce.protocol import Membership
from p4reduce.transport import open_transport

from ..local.engines import NoTransport
from .job import memberships


def connect(membership: Membership) -> socket.socket:
    """As a rank does that is stopped before it has said which it is."""
    name = f"\0{host_meeting(membership)}"
    silent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    until = time.monotonic() + 10
    while True:
        try:
            silent.connect(name)
        except ConnectionRefusedError:
            assert time.monotonic() < until
            time.sleep(0.01)
        else:
            return silent


@pytest.mark.parametrize("all_come", [True, False])
def test_who_is_stopped_while_it_comes_keeps_no_other_waiting(all_come: bool) -> None:
    everyone = memberships((0, 0, 0))
    with udp_switch() as switch, ThreadPoolExecutor(3) as pool:

        def start(membership: Membership) -> SharingEngine:
            transport = open_transport("udp", switch.place) if membership.rank == 0 else NoTransport()
            # Who leads gives up first, and tells the others why.
            limit = 3 if membership.rank == 0 else 20
            return SharingEngine(transport, membership, switch="it", timeout=20 if all_come else limit)

        first = pool.submit(start, everyone[0])
        with connect(everyone[0]):
            began = time.monotonic()
            ranks = [first, *(pool.submit(start, member) for member in everyone[1 : 3 if all_come else 2])]
            if all_come:
                for rank in ranks:
                    rank.result().close(P4ReduceError("the test is over"))
                assert time.monotonic() - began < 15
                return
            said = [rank.exception() for rank in ranks]
    assert all(isinstance(error, CollectiveTimeout) for error in said)
    assert str(said[0]) == "not all ranks of this host have set up shared memory within 3 s: rank 2 has not"
    assert str(said[1]) == str(said[0]).replace("3 s", "20 s")
