# SPDX-License-Identifier: Apache-2.0
"""Generation of the whole program: one Python function for parser and ingress, one for egress and deparser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from p4reduce_targets.sim.actions import DROP_PORT, LENGTH, ActionCode
from p4reduce_targets.sim.checksums import CHECKSUM_ERROR, ChecksumCode, checksum_of_parts, internet_checksum
from p4reduce_targets.sim.code import (
    COMPARE,
    Do,
    Expr,
    If,
    Statement,
    assign,
    compose,
    constant,
    fit,
    prune,
    render,
    variable,
)
from p4reduce_targets.sim.deparser import PAYLOAD, DeparserCode
from p4reduce_targets.sim.errors import UnsupportedFeature
from p4reduce_targets.sim.layout import Layout
from p4reduce_targets.sim.meters import MeterArray
from p4reduce_targets.sim.parser import AT, ERROR, ParserCode
from p4reduce_targets.sim.pipeline import PipelineCode
from p4reduce_targets.sim.program import Field, Program
from p4reduce_targets.sim.rows import Rows
from p4reduce_targets.sim.tables import Table

NORMAL, REPLICATION = 0, 5  # v1model's instance_type


@dataclass(frozen=True, slots=True)
class Generated:
    """Python source that defines `process(port, frame)`, with the state that it shares with the control plane."""

    source: str
    tables: dict[str, Table]
    counters: dict[str, tuple[list[int], list[int]]]  # packets and bytes
    meters: dict[str, MeterArray]


def generate(program: Program, shared: dict[str, object], clock: Callable[[], int]) -> Generated:
    """Translate a program, and put the globals that its code needs into `shared`. Raises UnsupportedFeature.

    `clock` is the meters' clock, in nanoseconds.
    """
    return _Generator(program, shared, clock).generate()


class _Generator:
    def __init__(self, program: Program, shared: dict[str, object], clock: Callable[[], int]) -> None:
        self.program = program
        self.shared = shared
        self.clock = clock
        self.rows = Rows(program)
        wire = [header for header in program.headers.values() if not header.metadata]
        self.layouts = {header.name: Layout(header, program.names) for header in wire}
        actions = ActionCode(program, self.rows, shared)
        pipelines = {item["name"]: item for item in program.source["pipelines"]}
        for name in pipelines.keys() ^ {"ingress", "egress"}:
            raise UnsupportedFeature("an architecture other than v1model", f"pipeline {name}")
        self.ingress = PipelineCode(program, pipelines["ingress"], actions, shared)
        self.egress = PipelineCode(program, pipelines["egress"], actions, shared)
        self.checksums = ChecksumCode(program)
        self.deparser = DeparserCode(program, self.rows, self.layouts)

    def generate(self) -> Generated:
        counters, meters = self._share_state()
        before_out = [*self._egress_start(), *self.egress.body()]
        update = self.checksums.update()
        changing = prune([*before_out, *update], self._all_variables()).written
        frozen, frame = self.deparser.split(changing)
        egress = prune([*before_out, *self._send(update, frame)], ())
        given = {"egress_port", "egress_instance", "sent"}
        handed = sorted(egress.before - given)
        ingress = prune(
            [
                *self._ingress_start(),
                *ParserCode(self.program, self.rows, self.layouts).body(),
                *self._parsed(),
                *self.ingress.body(),
                *self._traffic_manager(),
                *(part.statement() for part in frozen if part.variable in handed),
                Do(
                    f"for port_out, instance in copies: egress(port_out, instance, sent, {', '.join(handed)})",
                    frozenset(handed) | {"copies", "sent"},
                ),
            ],
            (),
        )
        lines = [
            "def process(port_in, frame):",
            "    frame_size = len(frame)",
            "    sent = []",
            *_zeros(ingress.before - {"port_in", "frame", "frame_size", "sent"}),
            *render(ingress.body, 1),
            "    return sent",
            "",
            "",
            f"def egress(egress_port, egress_instance, sent, {', '.join(handed)}):",
            *render(egress.body, 1),
        ]
        return Generated("\n".join(lines) + "\n", self.ingress.tables | self.egress.tables, counters, meters)

    def _share_state(self) -> tuple[dict[str, tuple[list[int], list[int]]], dict[str, MeterArray]]:
        self.shared["internet_checksum"] = internet_checksum
        self.shared["checksum_of_parts"] = checksum_of_parts
        for layout in self.layouts.values():
            self.shared[layout.codec] = layout.struct()
        for register in self.program.registers.values():
            if (register.name,) not in self.rows.parts:
                self.shared[register.variable] = [0] * register.size
        for name, (_, size) in self.rows.banks.items():
            self.shared[name] = [0] * size
        counters = {}
        for counter in self.program.counters.values():
            counters[counter.name] = ([0] * counter.size, [0] * counter.size)
            self.shared[counter.packets], self.shared[counter.bytes] = counters[counter.name]
        meters = {}
        for meter in self.program.meters.values():
            self.shared[meter.variable] = meters[meter.name] = MeterArray(meter.size, self.clock)
        return counters, meters

    def _all_variables(self) -> frozenset[str]:
        names: set[str] = {row.variable for row in self.rows.headers.values()}
        for header in self.program.headers.values():
            names.add(header.valid)
            names.update(field.variable for field in header.fields)
        return frozenset(names)

    def _intrinsic(self, name: str, value: Expr, *older: str) -> list[Statement]:
        """Return the assignment to a field of the architecture, if the program has this field."""
        field = self.program.intrinsic(name, *older)
        return [] if field is None else [assign(field.variable, fit(value, field.bits))]

    def _now(self, name: str) -> list[Statement]:
        return self._intrinsic(name, compose("microseconds()"), f"intrinsic_metadata.{name}")

    def _ingress_start(self) -> list[Statement]:
        return [
            *self._intrinsic("ingress_port", variable("port_in", 9)),
            *self._intrinsic("packet_length", variable("frame_size", 32)),
            *self._now("ingress_global_timestamp"),
            assign(LENGTH, variable("frame_size", 32)),
        ]

    def _parsed(self) -> list[Statement]:
        return [
            assign(PAYLOAD, compose(f"frame[{AT}:]", variable("frame", 0), variable(AT, 32))),
            *self._intrinsic("parser_error", variable(ERROR, 32)),
            *self.checksums.verify(),
            *self._intrinsic("checksum_error", variable(CHECKSUM_ERROR, 1)),
        ]

    def _traffic_manager(self) -> list[Statement]:
        """Return statements that set `copies` to the (port, instance) pairs to send."""
        spec = self._required("egress_spec")
        instance = self.program.intrinsic("egress_rid", "intrinsic_metadata.egress_rid")
        group = self.program.intrinsic("mcast_grp", "intrinsic_metadata.mcast_grp")
        copy_instance = "0" if instance is None else instance.variable
        reads = [variable(spec.variable, spec.bits)]
        if instance is not None:
            reads.append(variable(instance.variable, instance.bits))
        unicast: list[Statement] = [
            *self._intrinsic("instance_type", constant(NORMAL)),
            assign("copies", compose(f"(({spec.variable}, {copy_instance}),)", *reads)),
        ]
        dropped: list[Statement] = [Do("return sent", frozenset({"sent"}))]
        is_dropped = compose(f"{spec.variable} == {DROP_PORT}", reads[0], bits=1, level=COMPARE)
        branches: list[tuple[Expr | None, list[Statement]]] = [(is_dropped, dropped), (None, unicast)]
        if group is not None:
            wanted = variable(group.variable, group.bits)
            multicast: list[Statement] = [
                *self._intrinsic("instance_type", constant(REPLICATION)),
                assign("copies", compose(f"groups.get({wanted.text}, ())", wanted)),
            ]
            branches.insert(0, (wanted, multicast))
        return [If(branches)]

    def _required(self, name: str) -> Field:
        field = self.program.intrinsic(name)
        if field is None:
            raise UnsupportedFeature(f"an architecture without standard_metadata.{name}", "program")
        return field

    def _egress_start(self) -> list[Statement]:
        zero = constant(0)
        return [
            *self._intrinsic("egress_port", variable("egress_port", 9)),
            *self._intrinsic("egress_rid", variable("egress_instance", 16), "intrinsic_metadata.egress_rid"),
            *self._intrinsic("egress_spec", constant(DROP_PORT + 1)),
            *self._intrinsic("packet_length", variable(LENGTH, 32)),
            *self._now("egress_global_timestamp"),
            *self._intrinsic("enq_timestamp", compose("microseconds()"), "queueing_metadata.enq_timestamp"),
            *self._intrinsic("enq_qdepth", zero, "queueing_metadata.enq_qdepth"),
            *self._intrinsic("deq_timedelta", zero, "queueing_metadata.deq_timedelta"),
            *self._intrinsic("deq_qdepth", zero, "queueing_metadata.deq_qdepth"),
        ]

    def _send(self, update: list[Statement], frame: Expr) -> list[Statement]:
        spec = self._required("egress_spec")
        kept = compose(f"{spec.variable} != {DROP_PORT}", variable(spec.variable, spec.bits), bits=1, level=COMPARE)
        send = Do(f"sent.append((egress_port, {frame.text}))", frame.reads | {"sent", "egress_port"})
        return [If([(kept, [*update, send])])]


def _zeros(names: frozenset[str]) -> list[str]:
    """Return the line that initialises variables that may be read before they are written."""
    return [f"    {' = '.join(sorted(names))} = 0"] if names else []
