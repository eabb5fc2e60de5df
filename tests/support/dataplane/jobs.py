# SPDX-License-Identifier: Apache-2.0
"""A job as the controller installs it, and the frames that its workers send and expect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from . import frames
from .frames import NO_KEY, NOBODY, PARENT, Aggregation, Host, Values
from .p4runtime import Entry
from .switch import JOBS, SWITCH, UPLINKS, WORKERS, Outputs, Switch

FIRST_SEQ = 2


@dataclass(frozen=True)
class Member:
    """A worker, and the switch port behind which it is."""

    port: int
    host: Host


class Job:
    """A job of `size` workers, spread over the ports of a switch.

    pool_base: the first slot half of the job's pool of `slots` slots.
    parent: the switch above, if this switch is a leaf.
    index: the worker of its parent that this leaf is.
    vlans: the VLANs of workers, which take turns; untagged (0) if the switch's program knows no VLANs.
    own: the switch's address, whose family the workers' addresses have.
    """

    def __init__(
        self,
        switch: Switch,
        size: int,
        *,
        number: int = 7,
        generation: int = 1,
        pool_base: int = 0,
        slots: int = 2,
        first_seq: int = FIRST_SEQ,
        fingerprint: int = 0xC0FFEE00,
        parent: Member | None = None,
        index: int = 0,
        vlans: Sequence[int] = (0,),
        own: Host = SWITCH,
    ) -> None:
        self.switch, self.size, self.number, self.generation = switch, size, number, generation
        self.pool_base, self.slots, self.first_seq, self.fingerprint = pool_base, slots, first_seq, fingerprint
        self.group = 0x100 + (number & 0xFFF)
        self.parent, self.index, self.own = parent, index, own
        self.members = [
            Member(
                switch.ports[rank % len(switch.ports)],
                Host(
                    f"02:00:00:00:{number & 0xFF:02x}:{rank:02x}",
                    f"fd00::{number:x}:{rank + 1:x}" if ":" in own.ip else f"10.{number & 0x7F}.0.{rank + 1}",
                    40000 + rank,
                    vlans[rank % len(vlans)] if switch.knows_vlans else 0,
                ),
            )
            for rank in range(size)
        ]

    @property
    def all_workers(self) -> int:
        return (1 << self.size) - 1

    @property
    def full(self) -> int:
        return self.all_workers | (1 << PARENT if self.parent else 0)

    def member(self, rank: int) -> Member:
        """Return a worker, or the parent for the rank PARENT."""
        if rank == PARENT and self.parent:
            return self.parent
        return self.members[rank]

    def uplink(self) -> Entry:
        assert self.parent
        host = self.parent.host
        params = {"port": self.parent.port, "mac": frames.mac_number(host.mac), "ip": host.ip}
        params |= {"udp_port": host.udp_port, "worker": self.index}
        return Entry(UPLINKS, {"job": self.number}, "SwitchIngress.aggregation.uplink.uplink", params)

    def admission(self, rank: int) -> Entry:
        member = self.member(rank)
        return Entry(
            JOBS,
            {
                "ingress_port": member.port,
                "source_ip": member.host.ip,
                "source_port": member.host.udp_port,
                "job": self.number,
                "generation": self.generation,
                "worker": rank,
                "vlan": member.host.vlan,  # left out if the program does not know VLANs
            },
            "SwitchIngress.aggregation.admission.admit",
            {
                "worker_bit": 1 << rank,
                "full_bitmap": self.full,
                "pool_base": self.pool_base,
                "pool_halves": 2 * self.slots,
                "group": self.group,
            },
        )

    def delivery(self, rank: int) -> Entry:
        host = self.members[rank].host
        params = {
            "mac": frames.mac_number(host.mac),
            "ip": host.ip,
            "udp_port": host.udp_port,
        }
        action = "SwitchEgress.delivery.address"
        if host.vlan:
            action, params = f"{action}_in_vlan", {**params, "vlan": host.vlan}
        return Entry(WORKERS, {"job": self.number, "instance": rank + 1}, action, params)

    def start(self) -> Job:
        """Install table entries and the multicast group, and reset slot halves, as the controller does."""
        if self.parent and not self.switch.can_be_leaf:
            pytest.skip("the program of this profile can be the root of a tree only")
        ranks = range(self.size)
        self.switch.insert(*map(self.admission, ranks), *map(self.delivery, ranks))
        if self.parent:
            self.switch.insert(self.uplink(), self.admission(PARENT))
        self.switch.insert_group(self.group, [(self.members[rank].port, rank + 1) for rank in ranks])
        self.reset().expect()
        return self

    def reset(self) -> Outputs:
        """Send a RESET for every half, as the controller does, so that `first_seq` is the first round."""
        return self.switch.reset_halves(
            {self.pool_base + half: (self.first_seq - 2 + half % 2) & 0xFFFFFFFF for half in range(2 * self.slots)}
        )

    # --- packets of workers -----------------------------------------------------------------------------------------

    def packet(
        self,
        rank: int,
        seq: int,
        *,
        slot: int = 0,
        active: int | None = None,
        keys: Sequence[int] | None = None,
        values: Mapping[int, Values] | None = None,
        fingerprint: int | None = None,
        **other: int,
    ) -> Aggregation:
        """Return the DATA packet of a rank for round `seq`.

        slot: the number of the whole slot, within the pool.
        active: the bitmap of active lanes. The default is the lanes of `values`.
        fingerprint: that of the operation. The lowest byte of the packet's is `active`.
        """
        values = values or {}
        active = sum(1 << lane for lane in values) if active is None else active
        operation = self.fingerprint if fingerprint is None else fingerprint
        return Aggregation(
            **{
                "active": active,
                "worker": rank,
                "job": self.number,
                "generation": self.generation,
                "slot": 2 * slot + (seq & 1),
                "seq": seq & 0xFFFFFFFF,
                "fingerprint": of_round(operation, active),
                "keys": (NO_KEY,) * self.switch.lanes if keys is None else tuple(keys),
                "values": values,
                **other,
            }
        )

    def sent(self, packet: Aggregation, rank: int | None = None, *, tos: int = 0) -> tuple[int, bytes]:
        """Return the port and the frame of a packet from its worker, or from the port and address of another rank."""
        member = self.members[packet.worker if rank is None else rank]
        return member.port, frames.frame(member.host, self.own, packet, tos=tos)

    def data(self, rank: int, seq: int, **fields: object) -> tuple[int, bytes]:
        return self.sent(self.packet(rank, seq, **fields))

    def from_parent(self, packet: Aggregation, *, tos: int = 0) -> tuple[int, bytes]:
        """Return the port and the frame of a RESULT, STATUS or ERROR from the parent."""
        assert self.parent
        return self.parent.port, frames.frame(self.parent.host, self.own, packet, tos=tos)

    # --- answers of the switch ----------------------------------------------------------------------------------------

    def to_one(self, rank: int, answer: Aggregation, *, tos: int = 0) -> dict[int, list[bytes]]:
        member = self.members[rank]
        return {member.port: [frames.frame(self.own, member.host, answer, tos=tos)]}

    def to_all(self, answer: Aggregation, *, tos: int = 0) -> dict[int, list[bytes]]:
        ports: dict[int, list[bytes]] = {}
        for member in self.members:
            ports.setdefault(member.port, []).append(frames.frame(self.own, member.host, answer, tos=tos))
        return ports

    def to_parent(self, packet: Aggregation, *, tos: int = 0) -> dict[int, list[bytes]]:
        assert self.parent
        from_leaf = replace(packet, worker=self.index)
        return {self.parent.port: [frames.frame(self.own, self.parent.host, from_leaf, tos=tos)]}

    def named(self, packet: Aggregation, envoy: int) -> Aggregation:
        """Return a packet of the parent as the leaf passes it on to its workers."""
        return replace(packet, worker=envoy if packet.worker == self.index else NOBODY)

    def result(self, last: Aggregation, *, keys: Sequence[int], values: Mapping[int, Values]) -> Aggregation:
        """Return the RESULT that the switch makes of `last`, the packet that completes the round or asks again."""
        return replace(last, op=frames.RESULT, keys=tuple(keys), values=values)

    def status(self, asked: Aggregation, bitmap: int) -> Aggregation:
        rest = (0,) * (self.switch.lanes - 1)
        return replace(asked, op=frames.STATUS, active=0, keys=(bitmap, *rest), values={}, present=0)

    def error(self, wrong: Aggregation, right_fingerprint: int) -> Aggregation:
        rest = (0,) * (self.switch.lanes - 1)
        keys = (wrong.fingerprint, *rest)
        return replace(wrong, op=frames.ERROR, active=0, fingerprint=right_fingerprint, keys=keys, values={}, present=0)


def of_round(operation: int, active: int) -> int:
    """Return the fingerprint of a round with these active lanes, from that of its operation."""
    return operation & ~0xFF | active & 0xFF


def with_lanes(packet: Aggregation, active: int) -> Aggregation:
    """Return the packet with other active lanes, also in its fingerprint."""
    return replace(packet, active=active, fingerprint=of_round(packet.fingerprint, active))


def values_of(seed: int, switch: Switch, lanes: Sequence[int]) -> dict[int, Values]:
    """Return random int32 values for each of `lanes`, over the whole range."""
    random = np.random.default_rng(seed)
    low, high = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    return {lane: random.integers(low, high, switch.block_size, np.int32, endpoint=True) for lane in lanes}


def sums(switch: Switch, active: Sequence[int], *parts: Mapping[int, Values]) -> dict[int, Values]:
    """Return the sums that the switch computes of the workers' values, by lane: int32 addition that wraps around."""
    return {
        lane: sum((part[lane] for part in parts if lane in part), np.zeros(switch.block_size, np.int32))
        for lane in active
    }


class Round:
    """A round of a job in a slot: the packet of each worker, and the sums that the switch computes.

    lanes: the lanes for which each worker has values. The default is all.
    keys: the keys of each worker.
    """

    def __init__(
        self,
        job: Job,
        seq: int = FIRST_SEQ,
        *,
        slot: int = 0,
        lanes: Sequence[Sequence[int]] | None = None,
        keys: Sequence[Sequence[int]] | None = None,
        active: int | None = None,
    ) -> None:
        self.job, self.switch = job, job.switch
        every = range(self.switch.lanes)
        self.active = self.switch.all_lanes if active is None else active
        self.packets = [
            job.packet(
                rank,
                seq,
                slot=slot,
                active=self.active,
                values=values_of(64 * (100 * seq + slot) + rank, self.switch, every if lanes is None else lanes[rank]),
                keys=keys and keys[rank],
            )
            for rank in range(job.size)
        ]
        self.keys = tuple(map(min, zip(*(packet.keys for packet in self.packets), strict=True)))
        self.total = self.sums([lane for lane in every if self.active >> lane & 1])

    def sums(self, lanes: Sequence[int]) -> dict[int, Values]:
        return sums(self.switch, lanes, *(packet.values for packet in self.packets))

    def send(self, rank: int, *, tos: int = 0) -> Outputs:
        return self.switch.exchange(self.job.sent(self.packets[rank], tos=tos))

    def result(self, rank: int) -> Aggregation:
        """Return the RESULT that the switch makes of the rank's packet."""
        return self.job.result(self.packets[rank], keys=self.keys, values=self.total)

    def run(self, order: Sequence[int] | None = None) -> Round:
        """Send the packets of all ranks in this order. The last must bring the sum to all of them."""
        *others, last = range(self.job.size) if order is None else order
        for rank in others:
            self.send(rank).expect()
        self.send(last).expect(self.job.to_all(self.result(last)))
        return self

    def replay(self, rank: int) -> None:
        """Send a rank's packet again. The result must go to this rank alone."""
        self.send(rank).expect(self.job.to_one(rank, self.result(rank)))
