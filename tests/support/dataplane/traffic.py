# SPDX-License-Identifier: Apache-2.0
"""Random traffic for the fuzzer. The steps depend only on the seed, never on a switch's answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from . import frames
from .frames import NO_KEY, NOBODY, PARENT, Aggregation, Host
from .jobs import Job, Member
from .p4runtime import Entry
from .switch import LOSS_IN, LOSS_OUT, MAC_ADDRESSES, ROUTER_MACS, ROUTES, SWITCH, SWITCH_IPV6, Outputs, Switch
from .targets import CPU_PORT

ROUTER = "02:fe:00:00:00:01"
OTHER_ADDRESS = Host("02:5a:00:00:00:09", "10.255.9.9")
HOSTS = [Host(f"02:00:00:00:99:0{n}", f"10.99.0.{n}", 5000 + n) for n in range(1, 7)]  # the last two have no MAC entry
SPINE = Host("02:00:00:00:97:01", "10.97.0.1", 6000)
SPINE_IPV6 = replace(SPINE, ip="fd00::97:1")
FLOOD_GROUP, ODD_GROUP, NO_GROUP = 0x50, 0x51, 0x52
SHORTEST = 14  # bytes: a packet socket sends at least an Ethernet header
TAGS = (0x8100, 0x88A8)  # EtherTypes of VLAN tags
SHORTEST_TAGGED = 20  # bytes: the kernel drops a shorter frame with a VLAN tag
TAG_SIZE = 4
ALL = 2**32 - 1


@dataclass(frozen=True)
class Step:
    """An action on a switch, and a line that describes it."""

    what: str
    apply: Callable[[Switch], Outputs]


class Setup:
    """A fixed set-up: a network and some jobs, one of them below a spine if the switch can be a leaf.

    tagged: whether some workers are in VLANs, and frames have tags. Programs that do not know VLANs only bridge these.
    ipv6: whether some jobs are over IPv6, and frames, too.
    """

    def __init__(self, switch: Switch, tagged: bool, ipv6: bool) -> None:
        self.tagged, self.ipv6 = tagged, ipv6
        vlans, leaf_vlans = ((0, 10, 20), (30, 0)) if tagged else ((0,), (0,))
        self.jobs = [
            Job(switch, 3, number=1, pool_base=0, slots=2, first_seq=2),
            Job(switch, 1, number=2, pool_base=4, slots=1, first_seq=2**32 - 6),
            Job(switch, 6, number=3, generation=9, pool_base=8, slots=2, first_seq=2**31 - 6, vlans=vlans),
        ]
        self.leaf: Job | None = None
        if switch.can_be_leaf:
            parent, own = Member(switch.ports[2], SPINE_IPV6 if ipv6 else SPINE), SWITCH_IPV6 if ipv6 else SWITCH
            shape = {"pool_base": 12, "slots": 2, "index": 1, "vlans": leaf_vlans}
            self.leaf = Job(switch, 2, number=4, parent=parent, own=own, **shape)
            self.jobs.append(self.leaf)
        if ipv6:
            self.jobs.append(Job(switch, 3, number=5, pool_base=16, slots=2, vlans=vlans, own=SWITCH_IPV6))

    @property
    def halves(self) -> list[int]:
        """The slot halves of all pools, and one outside them."""
        return [job.pool_base + half for job in self.jobs for half in range(2 * job.slots)] + [24]

    def install(self, switch: Switch) -> None:
        switch.own_address(SWITCH)
        switch.own_address(OTHER_ADDRESS)
        if self.ipv6:
            switch.own_address(SWITCH_IPV6)
        for port, host in enumerate(HOSTS[:4], 1):
            switch.forward(host.mac, port)
        switch.flood_unknown(FLOOD_GROUP)
        switch.insert_group(ODD_GROUP, [(1, 0), (1, 3), (3, 1), (77, 0)])
        switch.insert(
            Entry(ROUTER_MACS, {"mac": frames.mac_number(ROUTER)}),
            *(route(f"10.{n}.0.0", 8 * (n % 3 + 1), n) for n in range(1, 5)),
            route("0.0.0.0", 0, 2),
            Entry(MAC_ADDRESSES, {"mac": frames.mac_number("02:00:00:00:98:01")}, "SwitchIngress.forwarding.discard"),
        )
        for port in switch.ports:
            switch.set_loss(LOSS_IN, port, 0)
        switch.limit_hellos(switch.ports[3], 0, 5)
        for job in self.jobs:
            job.start()


def route(destination: str, length: int, port: int) -> Entry:
    params = {"port": port, "source_mac": 0x02FE00000010 + port, "next_hop_mac": 0x02AA00000000 + port}
    number = frames.address_number(destination, 32) >> (32 - length) << (32 - length) if length else 0
    return Entry(ROUTES, {"destination": (number, length)}, "SwitchIngress.forwarding.route", params)


def in_ipv6(host: Host) -> Host:
    """Return the host with an IPv6 address instead. Of the switch's address, the result is IPv4-mapped."""
    return replace(host, ip=f"::ffff:{host.ip}" if host is SWITCH else f"fd00::{host.ip}")


def _correct_checksum(data: bytearray, ip: int) -> None:
    """Correct the checksum of the IPv4 header that begins at `ip`."""
    data[ip + 10 : ip + 12] = b"\x00\x00"
    data[ip + 10 : ip + 12] = frames.checksum(bytes(data[ip : ip + 20])).to_bytes(2, "big")


class Traffic:
    """An endless iterator of steps. The same seed and build give the same steps."""

    def __init__(self, setup: Setup, seed: int, lanes: int, block_size: int, halves: int) -> None:
        self._random = Random(seed)
        self._jobs = setup.jobs
        self._leaf = setup.leaf
        self._tagged, self._ipv6 = setup.tagged, setup.ipv6
        self._lanes, self._block_size, self._halves = lanes, block_size, halves
        self._rounds = {(job.number, slot): job.first_seq for job in setup.jobs for slot in range(job.slots)}
        self._history: list[tuple[int, bytes]] = []
        self._removed: tuple[Job, int] | None = None
        self._deaf = False
        self._kinds: list[tuple[Callable[[], Step], int]] = [
            (self._data, 44),
            (self._from_parent, 8 if setup.leaf else 0),
            (self._mutated, 22),
            (self._repeated, 6),
            (self._foreign, 10),
            (self._foreign_ipv6, 6 if setup.ipv6 else 0),
            (self._random_frame, 2),
            (self._hello, 2),
            (self._from_controller, 10),
            (self._admission, 1),
            (self._loss, 1),
        ]

    def __iter__(self) -> Traffic:
        return self

    def __next__(self) -> Step:
        kinds, weights = zip(*self._kinds, strict=True)
        return self._random.choices(kinds, weights)[0]()

    # --- frames into ports ------------------------------------------------------------------------------------------

    def _frame(self, kind: str, port: int, frame: bytes) -> Step:
        if int.from_bytes(frame[12:14], "big") in TAGS and (len(frame) < SHORTEST_TAGGED or not self._tagged):
            frame = frame[:12] + b"\x12\x34" + frame[14:]
        self._history.append((port, frame))
        del self._history[:-200]
        return Step(f"{kind} into port {port}: {frames.describe(frame)}", lambda switch: switch.exchange((port, frame)))

    def _packet(self, job: Job | None = None) -> tuple[Job, Aggregation]:
        """Return a DATA packet of a round near its slot's current one, which advances at random."""
        random = self._random
        job = job or random.choice(self._jobs)
        slot = random.randrange(job.slots)
        now = self._rounds[job.number, slot]
        if random.random() < 1 / (2 + job.size):
            now = self._rounds[job.number, slot] = (now + random.choice([1, 1, 1, 1, 1, 1, 2, 3])) % 2**32
        seq = (now + random.choices([0, -1, -2, 1, 2, 2**31 - 2, 2**31], [60, 12, 4, 3, 1, 0.02, 2])[0]) % 2**32
        # All workers agree on the lanes and the operation of a round.
        of_round = Random(seq * 64 + slot * 8 + job.number)
        active = of_round.getrandbits(self._lanes)
        room = 512 // (4 * self._block_size)
        lanes = [lane for lane in range(self._lanes) if active >> lane & 1]
        absent = random.sample(lanes, min(len(lanes), random.randint(0, room + (random.random() < 0.03))))
        packet = job.packet(
            random.randrange(job.size),
            seq,
            slot=slot,
            active=active,
            keys=[self._key() for _ in range(self._lanes)],
            values={lane: self._values() for lane in lanes if lane not in absent},
            fingerprint=of_round.getrandbits(32) if random.random() < 0.97 else random.getrandbits(32),
        )
        if random.random() < 0.01:
            packet = replace(packet, fingerprint=packet.fingerprint ^ 1 << random.randrange(8))
        return job, packet

    def _key(self) -> int:
        random = self._random
        return random.choice([NO_KEY, 0, 1, random.getrandbits(32), random.randrange(1 << 12), 0x80000000])

    def _values(self) -> frames.Values:
        random = np.random.default_rng(self._random.getrandbits(32))
        info = np.iinfo(np.int32)
        return random.integers(info.min, info.max, self._block_size, np.int32, endpoint=True)

    def _tos(self) -> int:
        return self._random.choice([0, 0, 2, 2, 2, 1, 3, self._random.getrandbits(8)])

    def _data(self) -> Step:
        job, packet = self._packet()
        return self._frame("data", *job.sent(packet, tos=self._tos()))

    def _from_parent(self) -> Step:
        """Return a RESULT, STATUS or ERROR from the spine. Now and then the op is another, or a worker sends it."""
        random = self._random
        assert self._leaf is not None
        job, packet = self._packet(self._leaf)
        ops = [frames.RESULT, frames.STATUS, frames.ERROR, frames.DATA, frames.HELLO]
        op = random.choices(ops, [12, 4, 1, 1, 1])[0]
        if op != frames.RESULT and random.random() < 0.9:
            packet = replace(packet, active=0, values={})
        packet = replace(packet, op=op, worker=random.choice([job.index, job.index, 0, PARENT, NOBODY]))
        if random.random() < 0.95:
            return self._frame("from parent", *job.from_parent(packet, tos=self._tos()))
        return self._frame("from parent", *job.sent(packet, random.randrange(job.size)))

    def _mutated(self) -> Step:
        random = self._random
        if self._history and random.random() < 0.3:
            port, frame = random.choice(self._history)
        else:
            job, packet = self._packet()
            rank = packet.worker
            if random.random() < 0.3:
                return self._frame("odd", *job.sent(replace(packet, **self._odd_fields(job)), rank))
            port, frame = job.sent(packet)
        return self._frame("mutated", self._any_port(port), self._mutate(frame))

    def _odd_fields(self, job: Job) -> dict[str, int]:
        random = self._random
        changes = {
            "op": random.randrange(16),
            "version": random.choice([0, 2, 15]),
            "active": random.getrandbits(8),
            "present": random.getrandbits(8),
            "worker": random.choice([job.size, 255, PARENT, 0]),
            "job": random.choice([0, 1, 2, 3, 4, 5, 0xFFFE]),
            "generation": random.choice([0, 1, 9, 0xFFFF]),
            "slot": random.choice([0, 1, 2 * job.slots, 2 * job.slots + 1, 0xFFFF, 0xFFF0, 4]),
            "seq": random.choice([0, 1, 2**32 - 1, 2**31, random.getrandbits(32)]),
        }
        return {name: changes[name] for name in random.sample(sorted(changes), random.choice([1, 1, 1, 2]))}

    def _mutate(self, frame: bytes) -> bytes:
        random = self._random
        data = bytearray(frame)
        for _ in range(random.choice([1, 1, 1, 2, 4])):
            kind = random.randrange(8)
            head = min(len(data), 80) - 1
            ip = SHORTEST + TAG_SIZE * (data[12:14] == b"\x81\x00")  # where the IP header begins
            ipv6 = data[ip - 2 : ip] == b"\x86\xdd"
            ip_size = 40 if ipv6 else 20
            if kind == 0:
                data[random.randint(0, head)] ^= 1 << random.randrange(8)
            elif kind == 1:
                data[random.randint(0, head)] = random.choice([0, 1, 0x7F, 0x80, 0xFF, random.getrandbits(8)])
            elif kind == 2:
                del data[random.randint(SHORTEST, max(SHORTEST, len(data))) :]
            elif kind == 3:
                data += random.randbytes(random.choice([1, 2, 6, 46, 256, 300]))
            elif kind == 4 and len(data) > ip + ip_size:  # a byte of the IP header, with a correct checksum
                data[random.randint(ip, ip + ip_size - 1)] = random.getrandbits(8)
                if not ipv6:
                    _correct_checksum(data, ip)
            elif kind == 5 and len(data) > SHORTEST + 8:  # without some bytes in the middle
                at = random.randint(SHORTEST, len(data) - 4)
                del data[at : at + random.randint(1, 4)]
            elif kind == 6 and len(data) > ip + ip_size + 6:  # lengths that match the frame
                udp_length = (len(data) - ip - ip_size).to_bytes(2, "big")
                data[ip + ip_size + 4 : ip + ip_size + 6] = udp_length
                if ipv6:
                    data[ip + 4 : ip + 6] = udp_length
                else:
                    data[ip + 2 : ip + 4] = (len(data) - ip).to_bytes(2, "big")
                    _correct_checksum(data, ip)
            elif kind == 7 and ip > SHORTEST and random.random() < 0.5:  # without its tag
                del data[12:16]
            elif kind == 7 and self._tagged:
                data = bytearray(frames.tagged(bytes(data), self._tag(), random.choice([*TAGS, frames.VLAN])))
        return bytes(data).ljust(SHORTEST, b"\x00")

    def _tag(self) -> int:
        """Return the number of a VLAN, often one that workers are in, and sometimes with a priority."""
        return self._random.choice([0, 10, 10, 20, 30, self._random.getrandbits(12)]) | self._random.choice([0, 0xE000])

    def _any_port(self, port: int) -> int:
        return port if self._random.random() < 0.9 else self._random.randint(1, 4)

    def _repeated(self) -> Step:
        if not self._history:
            return self._data()
        port, frame = self._random.choice(self._history)
        return self._frame("repeated", self._any_port(port), frame)

    def _hello(self) -> Step:
        random = self._random
        hello = Aggregation(
            op=frames.HELLO,
            worker=random.getrandbits(8),
            job=random.getrandbits(16),
            generation=random.getrandbits(16),
            fingerprint=random.getrandbits(32),
            keys=[random.getrandbits(32) for _ in range(self._lanes)],
        )
        host = random.choice(HOSTS)
        to = random.choice([SWITCH, SWITCH, OTHER_ADDRESS, HOSTS[0]])
        if self._ipv6 and random.random() < 0.5:
            host, to = in_ipv6(host), SWITCH_IPV6
        return self._frame("hello", random.randint(1, 4), frames.frame(host, to, hello))

    def _foreign(self) -> Step:
        random = self._random
        source, target = random.sample(HOSTS, 2)
        if random.random() < 0.1:
            source = random.choice([SWITCH, OTHER_ADDRESS])
        to = random.choice([target.mac, target.mac, ROUTER, ROUTER, frames.BROADCAST, SWITCH.mac, "02:00:00:00:98:01"])
        address = random.choice([target.ip, target.ip, SWITCH.ip, OTHER_ADDRESS.ip, f"10.{random.randint(0, 5)}.0.1"])
        asked = Host("00:00:00:00:00:00", random.choice([SWITCH.ip, OTHER_ADDRESS.ip, target.ip]))
        echo = frames.icmp_echo(random.choice([8, 8, 8, 0, 3]), random.getrandbits(16), 1, random.randbytes(8))
        datagram = frames.udp(source.udp_port, random.choice([53, frames.AGGREGATION_PORT]), random.randbytes(9))
        protocol, payload = random.choice([(frames.ICMP, echo), (frames.UDP, datagram), (6, random.randbytes(20))])
        packet = frames.ipv4(
            source.ip,
            address,
            protocol,
            payload,
            ttl=random.choice([64, 64, 2, 1, 0, 255]),
            identification=random.getrandbits(16),
            fragment=random.choice([0x4000, 0x4000, 0, 0x2000, 0x0007]),
            options=random.choice([b"", b"", b"", bytes(4), bytes(40)]),
            wrong_checksum=random.choice([0, 0, 0, 0, 1]),
        )
        frame = random.choice([
            frames.arp(random.choice([1, 1, 2]), source, asked),
            frames.ethernet(source.mac, to, frames.IPV4, packet),
            frames.ethernet(source.mac, to, frames.IPV4, packet),
            frames.ethernet(source.mac, to, random.choice([0x86DD, 0x88CC, 46]), random.randbytes(40)),
        ])  # fmt: skip
        for _ in range(random.choices([0, 1, 2], [9, 2, 1])[0]):
            frame = frames.tagged(frame, self._tag(), random.choice([*TAGS, frames.VLAN]))
        return self._frame("foreign", random.randint(1, 4), frame)

    def _foreign_ipv6(self) -> Step:
        random = self._random
        source, target = map(in_ipv6, random.sample(HOSTS, 2))
        if random.random() < 0.2:
            source = random.choice([SWITCH_IPV6, in_ipv6(SWITCH), replace(source, ip="::")])
        to = random.choice([target, SWITCH_IPV6, replace(target, ip="::ffff:10.255.0.1"), replace(target, mac=ROUTER)])
        asked = random.choice([SWITCH_IPV6.ip, target.ip])
        fields = {"ttl": random.choice([255, 255, 64]), "tos": self._tos()}
        rest = random.randbytes(random.choice([4, 12, 20, 28, 28]))
        datagram = frames.udp(source.udp_port, random.choice([53, frames.AGGREGATION_PORT]), random.randbytes(9))
        extension = random.choice([0, 43, 44, 60, 6])
        frame = random.choice([
            frames.solicitation(source, asked, to=random.choice([None, to]), option=random.choice([1, 1, 2])),
            frames.advertisement(source, asked, to),
            frames.icmpv6(source, to, random.choice([128, 128, 129, 135, 136, 137, 1, 8]), rest, **fields),
            frames.ip_frame(source, to, extension, bytes([58]) + random.randbytes(31), **fields),
            frames.ip_frame(source, to, frames.UDP, datagram, version=random.choice([6, 6, 4]), **fields),
        ])  # fmt: skip
        for _ in range(random.choices([0, 1, 2], [9, 3, 1])[0]):
            frame = frames.tagged(frame, self._tag(), random.choice([*TAGS, frames.VLAN]))
        return self._frame("foreign", random.randint(1, 4), frame)

    def _random_frame(self) -> Step:
        random = self._random
        frame = random.randbytes(random.choice([14, 15, 33, 60, 200]))
        return self._frame("random", random.randint(1, 4), frame)

    # --- the controller -----------------------------------------------------------------------------------------------

    def _from_controller(self) -> Step:
        random = self._random
        job = random.choice(self._jobs)
        lanes = random.choice([[], range(self._lanes), [lane for lane in range(self._lanes) if random.random() < 0.5]])
        op = random.choice([frames.QUERY] * 6 + [frames.RESET, frames.ABORT, random.randrange(16)])
        half = random.choice([job.pool_base + random.randrange(2 * job.slots)] * 8 + [24, self._halves, 0xFFFF])
        # RESETs keep halves near their current rounds.
        slot = min(max(half - job.pool_base, 0) // 2, job.slots - 1)
        seq = self._rounds[job.number, slot] + random.choice([-2, -4, 0, 2])
        packet = Aggregation(
            op=op,
            active=sum(1 << lane for lane in lanes) if random.random() < 0.9 else random.getrandbits(8),
            worker=random.randrange(8),
            job=job.number,
            generation=job.generation,
            slot=half,
            seq=seq - (seq + half) % 2,
            fingerprint=random.getrandbits(32),
            keys=[self._key() for _ in range(self._lanes)],
            values={lane: self._values() for lane in lanes},
        )
        controller = Host("02:5a:00:00:00:02", "10.255.0.2")
        frame = frames.frame(in_ipv6(controller) if ":" in job.own.ip else controller, job.own, packet)
        if random.random() < 0.1:
            frame = self._mutate(frame)
        elif self._history and random.random() < 0.1:
            _, frame = random.choice(self._history)
        through = random.random() < 0.9
        egress = random.choice([0, 1, 2, 3, 4, 9])
        group = random.choice([job.group, job.group, FLOOD_GROUP, ODD_GROUP, NO_GROUP, 0])
        return Step(
            f"packet-out {'through the pipeline' if through else f'of port {egress}'} group {group:#x}:"
            f" {frames.describe(frame)}",
            lambda switch: switch.packet_out(
                frame, through_pipeline=through, egress_port=egress, multicast_group=group
            ),
        )

    def _admission(self) -> Step:
        """Delete a worker's admission entry, or insert it again."""
        removed = self._removed is None
        if self._removed is None:
            job = self._random.choice(self._jobs)
            self._removed = job, self._random.randrange(job.size)
        job, rank = self._removed
        entry = job.admission(rank)
        if not removed:
            self._removed = None

        def apply(switch: Switch) -> Outputs:
            (switch.delete if removed else switch.insert)(entry)
            return switch.barrier(CPU_PORT)

        return Step(f"{'remove' if removed else 'admit'} rank {rank} of job {job.number}", apply)

    def _loss(self) -> Step:
        """Make the switch lose all frames out of port 4, or none any more."""
        self._deaf = deaf = not self._deaf
        entry = Entry(LOSS_OUT, {"port": 4}, "SwitchEgress.drop_simulator.lose", {"threshold": ALL})

        def apply(switch: Switch) -> Outputs:
            if not deaf:
                switch.let_losses_settle()  # frames that BMv2 still queues for the port must be lost, too
            (switch.insert if deaf else switch.delete)(entry)
            switch.deaf_ports = {4} if deaf else set()
            return switch.barrier(CPU_PORT)

        return Step(f"lose {'everything' if deaf else 'nothing'} out of port 4", apply)
