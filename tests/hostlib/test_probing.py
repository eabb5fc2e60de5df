# SPDX-License-Identifier: Apache-2.0
"""Tests of a rank's probes, which find out whether the path carries the job's longest packets."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import pytest

from p4reduce.control.client import Session
from p4reduce.errors import JobAborted, JoinError
from p4reduce.join import probing
from p4reduce.join.probing import Prober
from p4reduce.protocol import Membership
from p4reduce.transport import Transport, TransportError, open_transports
from p4reduce.transport.addresses import is_ipv6, protocol_of
from p4reduce.transport.frames import ip_and_udp_bytes
from tests.support.hostlib.udp_switch import endpoints
from tests.support.loopbacks import LOOPBACKS

MEMBERSHIP = Membership(job=3, generation=7, rank=1, world_size=2, slots=4, lanes=8, block_size=256, first_seq=0)
NONCE = 0x0123456789ABCDEF
LONGEST = 18 + 8 * 4 + 8 * 256 * 4


@dataclass
class FakeSession:
    aborted: JobAborted | None = None


@pytest.fixture(params=LOOPBACKS)
def loopback(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def switches(switches: list[socket.socket]) -> list[socket.socket]:
    return switches[:2]


@pytest.fixture
def link(switches: list[socket.socket]) -> Iterator[Transport]:
    made = open_transports("udp", endpoints(switches))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "ANSWER_TIMEOUT_S", 0.3)


def wait(link: Transport, switches: list[socket.socket], aborted: JobAborted | None = None) -> None:
    Prober(MEMBERSHIP, NONCE).await_answers(link, endpoints(switches), cast(Session, FakeSession(aborted)))


def test_every_other_hello_is_as_long_as_any_packet(link: Transport, switches: list[socket.socket]) -> None:
    prober = Prober(MEMBERSHIP, NONCE)
    assert prober.largest == LONGEST
    for _ in range(4):
        prober.say_hello(link)
    hellos = [switches[1].recv(65536) for _ in range(4)]
    assert [len(hello) for hello in hellos] == [LONGEST, 50, LONGEST, 50]
    assert {hello[14:22] for hello in hellos} == {NONCE.to_bytes(8, "big")}
    assert [int.from_bytes(hello[10:14], "big") for hello in hellos] == [0, 1, 0, 1]


@pytest.mark.parametrize("change", ["none", "short", "stranger's"])
def test_nothing_else_is_an_answer(link: Transport, switches: list[socket.socket], change: str) -> None:
    """Here the second switch lacks one."""
    prober = Prober(MEMBERSHIP, NONCE if change != "stranger's" else NONCE + 1)
    prober.say_hello(link)
    prober.say_hello(link)
    for one, answered in zip(switches, (True, change != "none"), strict=True):
        full, rank = one.recvfrom(65536)
        short, _ = one.recvfrom(65536)
        if answered:
            one.sendto(short if change == "short" and one is switches[1] else full, rank)
    silent = endpoints(switches)[change != "stranger's"]
    at, needed = re.escape(str(silent)), LONGEST + ip_and_udp_bytes(silent.ip)
    what = "of that length has come back, while short ones" if change == "short" else "has come back, short or long"
    longest = f"packets, {needed} bytes with {protocol_of(silent.ip)} headers, reach the switch at {at}"
    said = rf"{longest}, but for 0.3 s no answer {what}.* needs an MTU of {needed} or more"
    with pytest.raises(TransportError, match=said):
        wait(link, switches)


def test_short_ones_are_asked_for_where_no_answer_comes(
    monkeypatch: pytest.MonkeyPatch, link: Transport, switches: list[socket.socket]
) -> None:
    monkeypatch.setattr(probing, "SHORT_AFTER_S", 0.0)
    iptables = "ip6tables" if is_ipv6(endpoints(switches)[0].ip) else "iptables"
    with pytest.raises(TransportError, match=rf"firewall of this host \(`nft list ruleset`, `{iptables} -S INPUT`\)"):
        wait(link, switches)
    hellos = [switches[1].recv(65536) for _ in range(2)]
    assert [len(hello) for hello in hellos] == [LONGEST, 50]


def test_a_job_that_dies_meanwhile_is_not_waited_for(link: Transport, switches: list[socket.socket]) -> None:
    with pytest.raises(JoinError, match="rank 0 went"):
        wait(link, switches, JobAborted("rank 0 went"))


def test_every_switch_has_to_answer_once(link: Transport, switches: list[socket.socket]) -> None:
    Prober(MEMBERSHIP, NONCE).say_hello(link)
    for one in switches:
        hello, rank = one.recvfrom(65536)
        one.sendto(hello, rank)
        one.settimeout(0.2)
    wait(link, switches)
    for one in switches:
        with pytest.raises(TimeoutError):
            one.recv(65536)
