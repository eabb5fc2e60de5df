# SPDX-License-Identifier: Apache-2.0
"""A switch that executes p4c's IR of a program for the Tofino Native Architecture.

It models the chip's logic as the language and the architecture's P4 files define it: parsers, tables, stateful ALUs,
multicast, recirculation and deparsers. It models neither the chip's resources nor its deviations from the language,
such as a header that a short packet truncates, or fields that share containers.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from p4reduce_targets.sim.meters import RED, MeterArray
from p4reduce_targets.sim.switch import Switch
from p4reduce_targets.sim.tables import Entry, ExactTable

from .ir import load
from .translate import Translation, Translator

PASSES = 4  # passes of a packet through the pipeline; none needs more
RECIRCULATION_PORT = 68
PARTIAL_HEADER = 2  # PARSER_ERROR_PARTIAL_HDR
INGRESS, PARSED = "ingress_intrinsic_metadata_t", "ingress_intrinsic_metadata_from_parser_t"
DEPARSED, TO_MANAGER = "ingress_intrinsic_metadata_for_deparser_t", "ingress_intrinsic_metadata_for_tm_t"
EGRESS, OUT = "egress_intrinsic_metadata_t", "egress_intrinsic_metadata_for_deparser_t"
NOWHERE = -1
CHECK_SEQUENCE = 4  # bytes at the end of a frame; the chip counts them
RED_ON_CHIP = 3  # MeterColor_t

State = dict[str, Any]
Fields = list[tuple[str, int]]


class TooShort(Exception):
    """The packet ends within a header."""


class PacketIn:
    """The input of a parser. Headers are extracted from the front; the rest is payload."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def extract(self, s: State, valid: str, fields: Fields) -> None:
        bits = sum(size for _, size in fields)
        end = self.at + bits // 8
        if end > len(self.data):
            raise TooShort
        word = int.from_bytes(self.data[self.at : end], "big")
        for name, size in fields:
            bits -= size
            s[name] = word >> bits & ((1 << size) - 1)
        s[valid] = 1
        self.at = end

    def ahead(self, bits: int) -> int:
        """Return the next bits without extracting them."""
        end = self.at + bits // 8
        if end > len(self.data):
            raise TooShort
        return int.from_bytes(self.data[self.at : end], "big")

    def advance(self, bits: int) -> None:
        self.at += bits // 8

    @property
    def payload(self) -> bytes:
        return self.data[self.at :]


class PacketOut:
    """The output of a deparser: the valid headers."""

    def __init__(self) -> None:
        self.data = b""

    def emit(self, s: State, valid: str, fields: Fields) -> None:
        if s[valid]:
            self.data += pack([(s[name], size) for name, size in fields])


def pack(words: Sequence[tuple[int, int]]) -> bytes:
    total = bits = 0
    for value, size in words:
        total, bits = total << size | value, bits + size
    return total.to_bytes(bits // 8, "big")


def internet_checksum(words: Sequence[tuple[int, int]]) -> int:
    """Return the Internet checksum (RFC 1071)."""
    data = pack(words)
    total = sum(int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def first_match(
    entries: Sequence[tuple[tuple[tuple[int, int], ...], tuple[int, ...], int]],
) -> Callable[..., Entry | None]:
    """Return a lookup function for constant entries, which finds the first match."""
    known: dict[tuple[int, ...], Entry | None] = {}

    def lookup(*values: int) -> Entry | None:
        try:
            return known[values]
        except KeyError:
            pass
        if len(known) > 50_000:
            known.clear()
        found: Entry | None = None
        for keys, arguments, number in entries:
            if all(value & mask == want for value, (want, mask) in zip(values, keys, strict=True)):
                found = (number, None, *arguments)
                break
        known[values] = found
        return found

    return lookup


def exact(table: ExactTable) -> Callable[..., Entry | None]:
    entries = table.entries
    return lambda *values: entries.get(values[0] if len(values) == 1 else values)


def count_entry(s: State, length: int) -> None:
    if cell := s["$entry"]:
        cell[0] += 1
        cell[1] += length


def no_action(s: State) -> None:
    del s


class TofinoSwitch(Switch):
    """A `DataPlane` that has sim's tables, groups and counters, but processes packets by the translated program."""

    def __init__(
        self, translation: Translation, cpu_port: int, seed: int = 1, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.cpu_port = cpu_port
        self.translation = translation
        self._tables = translation.tables
        self._groups: dict[int, tuple[tuple[int, int], ...]] = {}
        self._counters = {name: ([0] * size, [0] * size) for name, size in translation.counters.items()}
        self._meters = {name: MeterArray(size, clock) for name, size in translation.meters.items()}
        self.registers = {
            name: [[word] * size for word in initial] for name, (size, initial) in translation.registers.items()
        }
        shared: dict[str, object] = {
            "registers": self.registers,
            "tables": translation.tables,
            "count": self._count,
            "count_entry": count_entry,
            "colour": self._colour,
            "random_bits": random.Random(seed).getrandbits,
            "internet_checksum": internet_checksum,
            "first_match": first_match,
            "exact": exact,
            "no_action": no_action,
            "run_states": run_states,
        }
        exec(compile(translation.source, "<tna program>", "exec"), shared)
        self._blocks = {name: shared[name] for name in shared if name.startswith(("ingress", "egress"))}

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Process a frame from a port, and return the outputs as (port, frame)."""
        out: list[tuple[int, bytes]] = []
        waiting = [(port, frame)]
        for _ in range(PASSES):
            if not waiting:
                return out
            sent = [one for port, frame in waiting for one in self._ingress(port, frame)]
            waiting = [one for one in sent if one[0] & 0x7F == RECIRCULATION_PORT]
            out += [one for one in sent if one[0] & 0x7F != RECIRCULATION_PORT]
        raise RuntimeError(f"a packet from port {port} was still recirculated after {PASSES} passes")

    def _ingress(self, port: int, frame: bytes, resubmitted: int = 0) -> list[tuple[int, bytes]]:
        s = dict(self.translation.template["ingress"])
        s[f"{TO_MANAGER}.ucast_egress_port"] = NOWHERE
        head = self._intrinsic("ingress", {f"{INGRESS}.ingress_port": port, f"{INGRESS}.resubmit_flag": resubmitted})
        packet = self._parse("ingress", s, head + bytes(self.translation.port_metadata_bits // 8) + frame)
        s["$counted"] = len(frame) + CHECK_SEQUENCE
        self._blocks["ingress"](s)
        if s[f"{DEPARSED}.drop_ctl"] & 1:
            return []
        data = self._deparse("ingress", s, packet)
        if s.pop("$resubmitted", 0):
            return self._ingress(port, frame, resubmitted=1)
        sent: list[tuple[int, bytes]] = []
        for port, instance in self._groups.get(s[f"{TO_MANAGER}.mcast_grp_a"], ()):
            sent += self._egress(port, instance, data)
        to = s[f"{TO_MANAGER}.ucast_egress_port"]
        if to != NOWHERE:
            bypass = s.get(f"{TO_MANAGER}.bypass_egress", 0)
            sent += [(to, data)] if bypass else self._egress(to, 0, data)
        return sent

    def _egress(self, port: int, instance: int, data: bytes) -> list[tuple[int, bytes]]:
        s = dict(self.translation.template["egress"])
        head = self._intrinsic("egress", {f"{EGRESS}.egress_port": port, f"{EGRESS}.egress_rid": instance})
        packet = self._parse("egress", s, head + data)
        s["$counted"] = len(data) + CHECK_SEQUENCE
        self._blocks["egress"](s)
        return [] if s[f"{OUT}.drop_ctl"] & 1 else [(port, self._deparse("egress", s, packet))]

    def _intrinsic(self, gress: str, values: dict[str, int]) -> bytes:
        fields = self.translation.intrinsic[gress]
        return pack([(values.get(name, 0), bits) for name, bits in fields])

    def _parse(self, gress: str, s: State, data: bytes) -> PacketIn:
        packet = PacketIn(data)
        try:
            self._blocks[f"{gress}_parser"](s, packet)
        except TooShort:
            s[f"{PARSED}.parser_err"] = PARTIAL_HEADER
        return packet

    def _deparse(self, gress: str, s: State, packet: PacketIn) -> bytes:
        out = PacketOut()
        self._blocks[f"{gress}_deparser"](s, out)
        return out.data + packet.payload

    def _colour(self, meter: str, index: int) -> int:
        """Execute a meter, and return the colour in the chip's encoding. All meters of this program count packets."""
        self._meters[meter].execute(index, 1)
        return RED_ON_CHIP if self._meters[meter].colour == RED else self._meters[meter].colour

    def _count(self, counter: str, index: int, length: int) -> None:
        packets, sizes = self._counters[counter]
        if index < len(packets):
            packets[index] += 1
            sizes[index] += length


def run_states(states: dict[str, Callable[[State, PacketIn], str]], s: State, pkt: PacketIn) -> None:
    state = "start"
    while state in states:
        state = states[state](s, pkt)


def load_switch(program: bytes, cpu_port: int) -> TofinoSwitch:
    """Return a switch that runs the output of `p4test --validate --toJSON`. Raises ValueError if it is no program."""
    return TofinoSwitch(Translator(load(program)).run(), cpu_port)
