# SPDX-License-Identifier: Apache-2.0
"""Ports of MAC addresses: the first claim wins, and claims that conflict with it are refused until it is released."""

from __future__ import annotations

import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.switches import hosts as limits
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.switches.hosts import Hosts
from tests.support.controller.jobs_harness import ADDRESS, IPV6_ADDRESS, JobsHarness

VICTIM = "02:00:00:00:00:07"
OTHER = Endpoint("02:00:0a:00:00:fd", "10.0.0.253", 31314)


def at(mac: str, ip: str = "10.0.0.7") -> Endpoint:
    return Endpoint(mac, ip, 5000)


def a_switch(**fixed: int) -> Hosts:
    return Hosts({mac.replace("_", ":"): port for mac, port in fixed.items()}, [ADDRESS, OTHER])


def test_an_address_does_not_move_while_a_job_is_there() -> None:
    hosts = a_switch()
    assert hosts.claim(at(VICTIM), 1, job=1) == ""
    assert hosts.claim(at(VICTIM), 1, job=2) == ""
    stays = f"its MAC address {VICTIM} is on port 1, where ranks of other jobs are, but its HELLO came in on port 2"
    assert hosts.claim(at(VICTIM), 2, job=3) == stays
    assert hosts.learned_for(3) == ()
    hosts.release(1)
    assert hosts.claim(at(VICTIM), 2, job=3) == stays
    assert hosts.learned_for(2) == ((VICTIM, 1),)
    hosts.release(2)
    assert hosts.claim(at(VICTIM), 2, job=3) == ""
    assert hosts.learned_for(3) == ((VICTIM, 2),)


def test_an_address_may_be_at_any_port_of_a_group() -> None:
    hosts = a_switch()
    assert hosts.claim(at(VICTIM), 1, job=1, lag=(1, 2)) == ""
    assert hosts.claim(at(VICTIM), 2, job=2, lag=(1, 2)) == ""
    assert hosts.learned_for(2) == ((VICTIM, 1),)
    assert "is on port 1" in hosts.claim(at(VICTIM), 3, job=3)
    assert Hosts({VICTIM: 1}, [ADDRESS]).claim(at(VICTIM), 2, job=1, lag=(1, 2)) == ""


def test_two_hosts_of_one_job_with_one_address() -> None:
    hosts = a_switch()
    assert hosts.claim(at(VICTIM), 1, job=1) == ""
    said = hosts.claim(at(VICTIM, "10.0.0.8"), 2, job=1)
    assert (
        f"its MAC address {VICTIM} is on port 1, where another rank of the job is (two hosts have this address" in said
    )


def test_one_that_was_told_is_not_learned() -> None:
    hosts = Hosts({VICTIM: 1}, [ADDRESS])
    assert "is on port 1, as --host says, but its HELLO came in on port 2" in hosts.claim(at(VICTIM), 2, job=1)
    assert hosts.claim(at(VICTIM), 1, job=1) == ""
    assert hosts.learned_for(1) == ()


@pytest.mark.parametrize("mac", ["00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01", "03:00:00:00:00:01"])
def test_what_is_no_hosts_is_refused(mac: str) -> None:
    assert a_switch().claim(at(mac), 1, job=1) == f"its MAC address is {mac}, which is not a host's address"


@pytest.mark.parametrize(
    "ip", ["0.0.0.0", "224.0.0.1", "239.255.255.255", "255.255.255.255", "::", "ff02::1", "fe80::7", "::ffff:10.0.0.7"]
)
def test_an_address_to_which_nothing_can_be_sent_is_refused(ip: str) -> None:
    hosts = a_switch()
    said = hosts.claim(at(VICTIM, ip), 1, job=1)
    assert said.startswith(f"its IP address is {ip}, and it is ")
    assert hosts.claim(Endpoint(VICTIM, "10.0.0.7", 0), 1, job=1) == "its UDP port is 0, to which nothing can be sent"
    assert hosts.learned_for(1) == ()
    assert hosts.claim(at(VICTIM), 2, job=2) == ""


@pytest.mark.parametrize("switch", [ADDRESS, OTHER])
def test_a_switchs_is_refused_but_for_a_host_that_it_runs_on(switch: Endpoint) -> None:
    hosts = a_switch()
    assert hosts.claim(at(switch.mac), 1, job=1) == f"its MAC address {switch.mac} is that of a switch"
    assert hosts.claim(at(switch.mac, switch.ip), 1, job=1) == ""
    assert hosts.learned_for(1) == ()


def test_no_port_fills_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_HOSTS", 5)
    monkeypatch.setattr(limits, "MOST_OF_A_PORT", 3)
    hosts = a_switch()
    for port in (1, 2):
        for number in range(8):
            assert hosts.claim(at(f"02:00:00:00:{port:02x}:{number:02x}"), port, job=port) == ""
    assert [len(hosts.learned_for(port)) for port in (1, 2)] == [3, 2]
    # Addresses that are not forwarded to do not move, either.
    assert "is on port 1" in hosts.claim(at("02:00:00:00:01:07"), 2, job=2)
    hosts.release(1)
    assert hosts.claim(at("02:00:00:00:01:07"), 2, job=2) == ""
    assert len(hosts.learned_for(2)) == 3


def hear(harness: JobsHarness, session: object, mac: str, port: int) -> None:
    assert harness.hear(session, port=port, sender=at(mac))


def test_a_rank_with_a_neighbours_address_is_refused_and_told_where_that_one_is() -> None:
    harness = JobsHarness()
    victim = harness.join(0, 1, name="victim")
    hear(harness, victim, VICTIM, 1)
    harness.installed()
    attackers = [harness.join(rank, 2, name="attacker") for rank in range(2)]
    hear(harness, attackers[0], "02:00:00:00:00:66", 2)
    hear(harness, attackers[1], VICTIM, 2)
    for session in attackers:
        abort = harness.last(session)
        assert (abort.rank, abort.reason) == (1, pb.JOIN_REFUSED)
        assert (
            f"job 'attacker': rank 1 is refused at the switch {ADDRESS}: its MAC address {VICTIM} is on port 1"
            in abort.message
        )
    assert [job.name for job in harness.jobs] == ["victim"]
    assert harness.kinds(victim)[-1] == "ready"
    # The address that the refused job had claimed is free again.
    again = harness.join(0, 1, name="another")
    hear(harness, again, "02:00:00:00:00:66", 3)
    assert harness.installs[-1].placements[0].hosts == (("02:00:00:00:00:66", 3),)


@pytest.mark.parametrize(
    ("switch", "ip"), [(ADDRESS, "fd00::7"), (IPV6_ADDRESS, "10.0.0.7"), (IPV6_ADDRESS, "::ffff:10.0.0.7")]
)
def test_a_rank_of_another_family_than_the_switch_is_refused(switch: Endpoint, ip: str) -> None:
    harness = JobsHarness(address=switch)
    other = harness.join(0, 1, name="other")
    assert harness.hear(other, sender=at(VICTIM, ip))
    said = harness.last(other).message
    assert f"rank 0 is refused at the switch {switch}: its IP address is {ip}" in said
    if "ffff" not in ip:
        assert said.endswith(f"and the switch's is {switch.ip}; they must be of one family, IPv4 or IPv6")
    assert harness.hear(harness.join(0, 1, name="own"))
    assert len(harness.installs) == 1


def test_hosts_that_were_told_are_kept_from_ranks() -> None:
    harness = JobsHarness()
    harness.jobs = Jobs(harness.switches, fixed=[{VICTIM: 1}])
    session = harness.join(0, 1)
    hear(harness, session, VICTIM, 2)
    assert "is on port 1, as --host says" in harness.last(session).message
