# SPDX-License-Identifier: Apache-2.0
"""A switch under test: frames into its ports, all frames out of them, and its tables over P4Runtime.

Almost nothing here waits a fixed time. Sentinels follow the frames of a test into the same port: a frame that is
flooded to all other ports, an ARP request that is answered at the same port, and a HELLO that goes to the controller.
The switch keeps the order of each port, so all outputs of the test come before the sentinels.
"""

from __future__ import annotations

import os
import queue
import select
import struct
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from finsy.proto import p4r

from p4reduce.protocol.constants import Outcome

from . import frames
from .frames import Aggregation, Host
from .p4runtime import Entry, P4Runtime, PacketIn, Program
from .targets import CPU_PORT, PORTS, TARGETS

# The build under test: the shipped one, or any other folder with p4reduce.json and p4info.txtpb.
SHIPPED = Path(__file__).resolve().parents[3] / "p4src" / "compiled"
COMPILED = Path(os.environ.get("P4REDUCE_COMPILED", SHIPPED))
DEADLINE_S = 20.0
SETTLED_S = 0.05
BURST = 16  # frames or packet-outs before a wait: BMv2 on a busy machine has lost some of 50

JOBS = "SwitchIngress.aggregation.admission.jobs"
OWN_ADDRESSES = "SwitchIngress.own_address.own_addresses"
OWN_SOURCES = "SwitchIngress.own_address.own_sources"
MAC_ADDRESSES = "SwitchIngress.forwarding.mac_addresses"
ROUTER_MACS = "SwitchIngress.forwarding.router_macs"
ROUTES = "SwitchIngress.forwarding.ipv4_routes"
LOSS_IN = "SwitchIngress.drop_simulator.loss_rates"
LOSS_OUT = "SwitchEgress.drop_simulator.loss_rates"
FORGERIES = "SwitchIngress.forgeries"
LOSSES_IN = "SwitchIngress.drop_simulator.losses"
LOSSES_OUT = "SwitchEgress.drop_simulator.losses"
WORKERS = "SwitchEgress.delivery.workers"
UPLINKS = "SwitchIngress.aggregation.uplink.uplinks"
OUTCOMES = "SwitchIngress.aggregation.outcomes"
OUTCOME_NAMES = [outcome.name.lower() for outcome in Outcome]
HELLOS = "SwitchIngress.aggregation.hellos"

SWITCH = Host("02:5a:00:00:00:01", "10.255.0.1")
SWITCH_IPV6 = Host(SWITCH.mac, "fd00::ff:1")
CONTROLLER = Host("02:5a:00:00:00:02", "10.255.0.2")

_SENTINEL_TYPE = 0x88B5  # the local experimental EtherType of IEEE 802
_SENTINEL_GROUP = 0x7FFE
_SENTINEL = Host("02:5e:00:00:00:01", "240.0.0.1")  # an address of the switch that only sentinels use
_SENTINEL_SENDER = Host("02:5e:00:00:00:02", "240.0.0.2")
_SENTINEL_JOB = 0xFFFF


@dataclass
class Outputs:
    """Everything that the switch sent: frames by port, in order, and packet-ins.

    padded: the switch pads short frames with zeros, which do not count in comparisons.
    """

    ports: dict[int, list[bytes]] = field(default_factory=dict)
    packet_ins: list[PacketIn] = field(default_factory=list)
    padded: bool = False

    def __iadd__(self, other: Outputs) -> Outputs:
        for port, data in other.ports.items():
            self.ports.setdefault(port, []).extend(data)
        self.packet_ins += other.packet_ins
        return self

    def describe(self) -> str:
        lines = [f"  port {port}: {frames.describe(f)}" for port in sorted(self.ports) for f in self.ports[port]]
        lines += [
            f"  packet-in from {p.ingress_port} bitmap {p.bitmap:#x}: {frames.describe(p.payload)}"
            for p in self.packet_ins
        ]
        return "\n".join(lines) or "  nothing"

    def sorted(self) -> Outputs:
        """Return the outputs sorted by port: copies of one multicast may leave a port in any order."""
        ports = {port: sorted(map(self._canonical, data)) for port, data in self.ports.items() if data}
        return Outputs(ports, self.packet_ins, self.padded)

    def _canonical(self, frame: bytes) -> bytes:
        return frame.rstrip(b"\0") if self.padded else frame

    def expect(self, ports: Mapping[int, Sequence[bytes]] | None = None, packet_ins: Sequence[PacketIn] = ()) -> None:
        """Raise AssertionError unless the outputs are exactly these, byte for byte."""
        wanted = Outputs(
            {port: list(data) for port, data in (ports or {}).items()}, list(packet_ins), self.padded
        ).sorted()
        if wanted != self.sorted():
            raise AssertionError(f"expected\n{wanted.describe()}\nbut there came\n{self.sorted().describe()}")


@dataclass(frozen=True)
class HalfState:
    """The state of a slot half.

    values: the sums of each lane, as big-endian int32.
    """

    seq: int
    bitmap: int
    fingerprint: int
    keys: tuple[int, ...]
    values: tuple[bytes, ...]

    @staticmethod
    def of(answer: PacketIn, lanes: int, block_size: int) -> HalfState:
        seq, fingerprint, *keys = struct.unpack_from(f"!II{lanes}I", answer.payload, 52)
        at, size = 60 + 4 * lanes, 4 * block_size
        values = tuple(answer.payload[at + lane * size : at + (lane + 1) * size] for lane in range(lanes))
        return HalfState(seq, answer.bitmap, fingerprint, tuple(keys), values)


class Switch:
    """A switch under test, for use as a context manager. `reset` undoes all that a test has set."""

    cpu_port = CPU_PORT  # of packet-ins that answer packet-outs
    pads_frames = False  # with zeros to the least length of Ethernet
    sees_check_sequence = False  # a frame that lacks up to four bytes passes for a whole one
    guards_keys = True  # a worker that is counted already cannot change the keys of its round
    can_be_leaf = True  # it can be a leaf in a tree of switches
    counts_once = False  # a packet counts as one outcome only: the one that completes a round as completed
    counts_refused = False  # whether a member's counter includes malformed and forbidden packets
    meters_have_bursts_at_rate_0 = True  # a meter of rate 0 lets its burst pass; otherwise nothing
    entered_alone = "started"  # the outcome, besides completed, of a round's only packet

    def __init__(self, target: str, compiled: Path = COMPILED) -> None:
        self.name = target
        self.program = Program(compiled / "p4info.txtpb", next(compiled.glob("p4reduce.*")))
        self.lanes, self.block_size = self.program.lanes, self.program.block_size
        self.halves = self.program.halves
        self.all_lanes = (1 << self.lanes) - 1
        self.max_absent = 512 // (4 * self.block_size)  # lanes of a round that a packet may leave out
        widths = {field.name: field.bitwidth for field in self.program.tables[JOBS].match_fields}
        self.knows_vlans = "vlan" in widths
        self.knows_ipv6 = widths["source_ip"] == 128
        self.ports = tuple(range(1, PORTS + 1))
        self.deaf_ports: set[int] = set()  # ports at which the switch loses all outgoing frames
        self.limited_ports: set[int] = set()  # ports at which the switch drops HELLOs
        self._entries: list[Entry] = []
        self._groups: list[int] = []
        self._halves: set[int] = set()
        self._default_is_set = False
        self._nonce = 0
        self._sentinels: Counter[str] = Counter()
        self._running = ExitStack()

    def __enter__(self) -> Switch:
        with ExitStack() as undo:
            self._target = undo.enter_context(TARGETS[self.name]())
            self.client = undo.enter_context(P4Runtime(self._target.grpc_address, self.program))
            self._install()
            self._running = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def _install(self) -> None:
        self.client.configure()
        own = {"mac": frames.mac_number(_SENTINEL.mac)}
        self.client.insert(
            Entry(OWN_ADDRESSES, {"address": _SENTINEL.ip}, "SwitchIngress.own_address.own", own),
            Entry(MAC_ADDRESSES, own, "SwitchIngress.forwarding.flood", {"group": _SENTINEL_GROUP}),
        )
        self.client.write_group(p4r.Update.INSERT, _SENTINEL_GROUP, [(port, 0) for port in self.ports])
        self._baseline = self._read_counters()

    def reinstall(self) -> None:
        """Install the pipeline again, which resets registers. The group is deleted first, since BMv2 would keep it."""
        self.client.write_group(p4r.Update.DELETE, _SENTINEL_GROUP)
        self._install()

    # --- tables ---------------------------------------------------------------------------------------------------

    def insert(self, *entries: Entry) -> None:
        self.client.insert(*entries)
        self._entries += entries

    def delete(self, *entries: Entry) -> None:
        self.client.delete(*entries)
        for entry in entries:
            self._entries.remove(entry)

    def insert_group(self, group: int, replicas: Iterable[tuple[int, int]]) -> None:
        self.client.write_group(p4r.Update.INSERT, group, replicas)
        self._groups.append(group)

    def own_address(self, host: Host = SWITCH) -> None:
        self.insert(
            Entry(
                OWN_ADDRESSES,
                {"address": host.ip},
                "SwitchIngress.own_address.own",
                {"mac": frames.mac_number(host.mac)},
            ),
            Entry(OWN_SOURCES, {"address": host.ip}, "SwitchIngress.own_address.forged"),
        )

    def forward(self, mac: str, port: int) -> None:
        match = {"mac": frames.mac_number(mac)}
        self.insert(Entry(MAC_ADDRESSES, match, "SwitchIngress.forwarding.forward", {"port": port}))

    def flood_unknown(self, group: int) -> None:
        self.insert_group(group, [(port, 0) for port in self.ports])
        self.client.set_default(MAC_ADDRESSES, "SwitchIngress.forwarding.flood", {"group": group})
        self._default_is_set = True

    def set_loss(self, table: str, port: int, threshold: int) -> Entry:
        """Make the switch lose a share of `threshold` / 2^32 of the packets at a port.

        table: `LOSS_IN` or `LOSS_OUT`, which is the direction.
        """
        entry = Entry(table, {"port": port}, table.replace("loss_rates", "lose"), {"threshold": threshold})
        self.insert(entry)
        return entry

    def limit_hellos(self, port: int, rate: int, burst: int) -> None:
        """Limit the HELLOs at a port to `rate` a second and `burst` at once, until `reset`."""
        self.client.write_meter(HELLOS, port, (rate, burst, rate, burst))
        self.limited_ports.add(port)

    def reset(self) -> None:
        """Undo entries, groups, defaults and the state of halves. Raises AssertionError if the switch still sends."""
        self.deaf_ports.clear()
        for port in self.limited_ports:
            self.client.write_meter(HELLOS, port, None)
        self.limited_ports.clear()
        if self._default_is_set:
            self.client.set_default(MAC_ADDRESSES, "SwitchIngress.forwarding.discard", {})
            self._default_is_set = False
        if self._entries:
            self.client.delete(*self._entries)
            self._entries.clear()
        for group in self._groups:
            self.client.write_group(p4r.Update.DELETE, group)
        self._groups.clear()
        rest = self.reset_halves(dict.fromkeys(self._halves, 0))
        self._halves.clear()
        for port in self.ports:
            rest += self.barrier(port)
        self._baseline = self._read_counters()
        rest.expect()

    # --- frames ---------------------------------------------------------------------------------------------------

    def inject(self, port: int, frame: bytes) -> None:
        """Send a frame into a port, without waiting for outputs."""
        self._target.sockets[port].send(frame)

    def exchange(self, *inputs: tuple[int, bytes]) -> Outputs:
        """Send each (port, frame) in this order, and return all outputs of the switch."""
        outputs = Outputs(padded=self.pads_frames)
        pending = 0
        for at, (port, frame) in enumerate(inputs):
            self.inject(port, frame)
            pending += 1
            if pending == BURST or at + 1 == len(inputs) or inputs[at + 1][0] != port:
                outputs += self.barrier(port)
                pending = 0
        return outputs

    def packet_out(
        self, frame: bytes, *, through_pipeline: bool = True, egress_port: int = 0, multicast_group: int = 0
    ) -> Outputs:
        """Send a frame by packet-out, and return all outputs of the switch."""
        self.client.packet_out(
            frame, through_pipeline=through_pipeline, egress_port=egress_port, multicast_group=multicast_group
        )
        return self.barrier(CPU_PORT)

    def barrier(self, port: int) -> Outputs:
        """Wait until the switch has processed all frames into `port`, and return all outputs since the last barrier."""
        self._nonce = (self._nonce + 1) & 0xFFFF
        mark = struct.pack("!H", self._nonce)
        flooded = frames.ethernet(_SENTINEL_SENDER.mac, _SENTINEL.mac, _SENTINEL_TYPE, mark + bytes(44))
        asker = Host(f"02:5e:00:01:{mark[0]:02x}:{mark[1]:02x}", _SENTINEL_SENDER.ip)
        packet = Aggregation(
            op=frames.QUERY if port == CPU_PORT else frames.HELLO,
            job=_SENTINEL_JOB,
            generation=self._nonce,
            slot=self.halves - 1,
            keys=(frames.NO_KEY,) * self.lanes,
        )
        to_controller = frames.frame(asker, _SENTINEL, packet)
        if port == CPU_PORT:
            self.client.packet_out(flooded)
            self.client.packet_out(to_controller)
            self._sentinels["query"] += 1
        else:
            self.inject(port, flooded)
            self.inject(port, frames.arp(1, asker, Host("00:00:00:00:00:00", _SENTINEL.ip)))
            if port not in self.limited_ports:
                self.inject(port, to_controller)
            self._sentinels["hello"] += 1
        outputs = self._collect_frames(mark, frames.mac_bytes(asker.mac))
        if port in self.limited_ports:
            self.inject(next(one for one in self.ports if one not in self.limited_ports), to_controller)
        self._collect_packet_ins(outputs, frames.mac_bytes(asker.mac))
        return outputs

    def _collect_frames(self, mark: bytes, mac_of_asker: bytes) -> Outputs:
        outputs = Outputs(padded=self.pads_frames)
        deadline = time.monotonic() + DEADLINE_S
        awaited = {self._target.sockets[port].fileno(): port for port in self.ports if port not in self.deaf_ports}
        poll = select.poll()
        for fd in awaited:
            poll.register(fd, select.POLLIN)
        while awaited:
            ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
            if not ready:
                self._target.check()
                raise TimeoutError(f"no sentinel from ports {sorted(awaited.values())}; so far\n{outputs.describe()}")
            for fd, _ in ready:
                port = awaited[fd]
                frame = self._target.receive(port)
                if frame is None:
                    continue
                if frame[:6] == mac_of_asker or (frame[12:14] == b"\x88\xb5" and frame[14:16] == mark):
                    poll.unregister(fd)
                    del awaited[fd]
                else:
                    outputs.ports.setdefault(port, []).append(frame)
        return outputs

    def _collect_packet_ins(self, outputs: Outputs, mac_of_asker: bytes) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                packet = self.client.packet_ins.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self._target.check()
                raise TimeoutError(f"no sentinel at the controller; so far\n{outputs.describe()}") from None
            if packet.payload[6:12] == mac_of_asker:
                return
            outputs.packet_ins.append(packet)

    def drain(self, port: int, frame: bytes) -> list[bytes]:
        """Return the frames that have left `port` so far. Raises AssertionError if any differs from `frame`."""
        got = []
        sock = self._target.sockets[port]
        while select.select([sock], [], [], 0)[0]:
            data = self._target.receive(port)
            if data is not None:
                assert data == frame, frames.describe(data)
                got.append(data)
        return got

    # --- slot halves and counters -----------------------------------------------------------------------------------

    def reset_halves(self, seqs: Mapping[int, int]) -> Outputs:
        """Send a RESET for each half, by absolute number, to its seq. Return all outputs but the acknowledgements."""
        outputs = Outputs(padded=self.pads_frames)
        packets = [self.to_switch(Aggregation(op=frames.RESET, slot=half, seq=seq)) for half, seq in seqs.items()]
        for first in range(0, len(packets), BURST):
            for packet in packets[first : first + BURST]:
                self.client.packet_out(packet)
            outputs += self.barrier(CPU_PORT)
        self._halves |= seqs.keys()
        answered = [p for p in outputs.packet_ins if p.payload[42] & 15 == frames.RESET]
        assert len(answered) == len(seqs), f"{len(answered)} of {len(seqs)} RESETs were acknowledged"
        return Outputs(outputs.ports, [p for p in outputs.packet_ins if p not in answered], self.pads_frames)

    def query(self, half: int) -> HalfState:
        """Return the state of a half, by absolute number, from a QUERY by packet-out."""
        room = {lane: np.zeros(self.block_size, np.int32) for lane in range(self.lanes)}
        asked = self.to_switch(Aggregation(op=frames.QUERY, slot=half, active=(1 << self.lanes) - 1, values=room))
        outputs = self.packet_out(asked)
        assert not outputs.ports
        (answer,) = outputs.packet_ins
        return HalfState.of(answer, self.lanes, self.block_size)

    def to_switch(self, packet: Aggregation) -> bytes:
        """Return a frame from the controller to the switch. The default keys are NO_KEY."""
        if not packet.keys:
            packet = Aggregation(**{**vars(packet), "keys": (frames.NO_KEY,) * self.lanes})
        return frames.frame(CONTROLLER, SWITCH, packet)

    def _read_counters(self) -> dict[str, Counter[int]]:
        counts = {}
        for name in (OUTCOMES, LOSSES_IN, LOSSES_OUT, FORGERIES):
            cells = self.client.read_counters(name)
            counts[name] = Counter({index: packets for index, (packets, _) in cells.items()})
        for name, count in self._sentinels.items():
            counts[OUTCOMES][OUTCOME_NAMES.index(name)] -= count
        return counts

    def counts(self) -> dict[str, int]:
        """Return the packets of each outcome since the test began, if any. Sentinels are not counted."""
        counts = self._read_counters()[OUTCOMES]
        counts.subtract(self._baseline[OUTCOMES])
        return {OUTCOME_NAMES[index]: count for index, count in counts.items() if count}

    def by_port(self, counter: str) -> dict[int, int]:
        """Return the packets of a counter at each port since the test began, if any."""
        counts = self._read_counters()[counter]
        counts.subtract(self._baseline[counter])
        return {port: count for port, count in counts.items() if count}

    def let_losses_settle(self) -> None:
        """Wait until the counts of lost packets no longer change.

        No sentinel leaves a port that loses all frames, so nothing else shows that its queue is empty.
        """
        counted = None
        while counted != (counted := self.by_port(LOSSES_OUT)):
            time.sleep(SETTLED_S)


PLANES = [
    pytest.param("sim"),
    pytest.param("native"),
    pytest.param(
        "native-eth", marks=[pytest.mark.root, pytest.mark.slow]
    ),  # the same slots as native, with other ports
    pytest.param("bmv2", marks=[pytest.mark.bmv2, pytest.mark.root]),
]
