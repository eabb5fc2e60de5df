# SPDX-License-Identifier: Apache-2.0
"""MAC addresses and their ports at one switch: some are configured, others learned from ranks while their jobs last.

A rank's HELLO says where the rank is, but anybody may send one. So no address moves, and configured addresses are
never learned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from p4reduce.transport.addresses import why_not_a_host
from p4reduce_controller.switches.frames import Endpoint, have_one_family, parse_mac

# The switch has room for 4096 addresses. Frames to addresses beyond this limit are flooded, and work all the same.
MOST_HOSTS = 2048
MOST_OF_A_PORT = 1024  # so that one port cannot use up the room of all


@dataclass
class _Home:
    """The port of a learned MAC address, and the jobs that have ranks there."""

    port: int
    learned: bool  # whether the switch forwards to it
    jobs: set[int] = field(default_factory=set)


def problem_of(sender: Endpoint) -> str:
    """Return why nothing can be sent to the address that a HELLO came from, or ""."""
    octets = parse_mac(sender.mac)
    if octets[0] & 1 or not any(octets):
        return f"its MAC address is {sender.mac}, which is not a host's address"
    if why := why_not_a_host(sender.ip):
        return f"its IP address is {sender.ip}, and {why}"
    if sender.udp_port == 0:
        return "its UDP port is 0, to which nothing can be sent"
    return ""


def family_conflict(sender: Endpoint, switch: Endpoint) -> str:
    """Return why the sender's packets cannot be answered from the switch's address, or ""."""
    if have_one_family(sender, switch):
        return ""
    return f"its IP address is {sender.ip} and the switch's is {switch.ip}; they must be of one family, IPv4 or IPv6"


class Hosts:
    """The hosts at one switch, without I/O.

    `fixed`: the configured ports of hosts and routers.
    `switches`: the addresses of all switches, including this one.
    """

    def __init__(self, fixed: Mapping[str, int], switches: Iterable[Endpoint]) -> None:
        self._fixed = dict(fixed)
        self._switches: dict[str, set[str]] = {}
        self.meet(switches)
        self._homes: dict[str, _Home] = {}

    def meet(self, switches: Iterable[Endpoint]) -> None:
        """Replace the addresses of all switches."""
        self._switches = {}
        for one in switches:
            self._switches.setdefault(one.mac, set()).add(one.ip)

    def claim(self, sender: Endpoint, port: int, job: int, lag: Collection[int] = ()) -> str:
        """Record that the job has a rank at that port. Return why that cannot be, or ""; then nothing is recorded.

        `lag`: the ports of its group, if it is in one.
        """
        if problem := problem_of(sender):
            return problem
        mac = sender.mac
        if mac in self._switches:
            # A host that runs a switch on UDP sockets shares its address with it. The address is not learned.
            return "" if sender.ip in self._switches[mac] else f"its MAC address {mac} is that of a switch"
        home = self._homes.get(mac)
        lives_on = self._fixed.get(mac, home.port if home is not None else port)
        if lives_on != port and lives_on not in lag:
            why = "as --host says" if mac in self._fixed else "where ranks of other jobs are"
            if mac not in self._fixed and home is not None and job in home.jobs:
                why = "where another rank of the job is (two hosts have this address, or one host has two ports)"
            return f"its MAC address {mac} is on port {lives_on}, {why}, but its HELLO came in on port {port}"
        if mac not in self._fixed:
            if home is None:
                home = self._homes[mac] = _Home(port, self._has_room(port))
            home.jobs.add(job)
        return ""

    def release(self, job: int) -> None:
        """Release all addresses that the job claimed."""
        for mac, home in list(self._homes.items()):
            home.jobs.discard(job)
            if not home.jobs:
                del self._homes[mac]

    def learned_for(self, job: int) -> tuple[tuple[str, int], ...]:
        """Return the addresses that the switch must forward to while the job exists, with their ports."""
        return tuple((mac, home.port) for mac, home in self._homes.items() if home.learned and job in home.jobs)

    def _has_room(self, port: int) -> bool:
        learned = [home.port for home in self._homes.values() if home.learned]
        return len(learned) < MOST_HOSTS and learned.count(port) < MOST_OF_A_PORT
