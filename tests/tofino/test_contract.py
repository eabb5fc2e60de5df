# SPDX-License-Identifier: Apache-2.0
"""One controller serves both programs: what P4Info tells of the one for BMv2 is there in the one for Tofino."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.dataplane.p4runtime import Program
from tests.support.dataplane.targets import Unavailable
from tests.support.tofino.builds import ONLY_BMV2_TABLES, PROFILES, bmv2, build, tofino
from tests.support.tofino.ir import Node, annotation, load
from tests.support.tofino.translate import Translation, Translator

pytestmark = [pytest.mark.p4c, pytest.mark.slow]

MATCHES = {2: "exact", 3: "lpm", 4: "ternary"}  # p4info.proto

# Registers that only one of them has. Of the sums, a pair's register holds the values i and i + 32.
ONLY_BMV2 = {"aggregation.slot_state.partials"}
ONLY_TOFINO = {"aggregation.slot_state.rounds", "aggregation.slot_state.operations"}


@pytest.fixture(scope="module", params=PROFILES)
def profile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def program(profile: str) -> Node:
    try:
        return load((build(profile) / "p4reduce.json").read_bytes())
    except Unavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def ours(program: Node) -> Translation:
    return Translator(program).run()


@pytest.fixture(scope="module")
def theirs(profile: str, program: Node) -> Program:
    del program  # which skips where p4c is missing
    folder = bmv2(tofino.PROFILES[profile].block_size)
    return Program(folder / "p4info.txtpb", folder / "p4reduce.json")


def test_tables_and_actions(ours: Translation, theirs: Program) -> None:
    actions = {action.preamble.id: action for action in theirs.info.actions}
    wanted: dict[str, Any] = {}
    for name, table in theirs.tables.items():
        fields = [(one.name, one.bitwidth, MATCHES[one.match_type]) for one in table.match_fields]
        calls = {
            actions[ref.id].preamble.name: [(p.name, p.bitwidth) for p in actions[ref.id].params]
            for ref in table.action_refs
        }
        wanted[name] = (fields, calls, table.size)
    found: dict[str, Any] = {}
    for name, one in ours.tables.items():
        if name not in ours.hidden:
            fields = [(field.name, field.bits, field.match) for field in one.key]
            calls = {action.name: [(p.name, p.bits) for p in action.parameters] for action in one.actions}
            found[name] = (fields, calls, one.size)
    assert found == {name: one for name, one in wanted.items() if name not in ONLY_BMV2_TABLES}
    assert wanted.keys() - found.keys() == ONLY_BMV2_TABLES


def test_counters(ours: Translation, theirs: Program) -> None:
    assert ours.counters == {name: counter.size for name, counter in theirs.counters.items()}


def test_tables_that_count(ours: Translation, theirs: Program) -> None:
    tables = {table.preamble.id: table.preamble.name for table in theirs.info.tables}
    wanted = {tables[one.direct_table_id] for one in theirs.info.direct_counters}
    assert {name for name, table in ours.tables.items() if table.counts} == wanted


def test_meters(ours: Translation, theirs: Program) -> None:
    assert ours.meters == {name: meter.size for name, meter in theirs.meters.items()}


def test_registers(ours: Translation, theirs: Program) -> None:
    def short(name: str) -> str:
        return name.partition(".")[2]

    wanted = {short(register.preamble.name): register.size for register in theirs.info.registers}
    found: dict[str, int] = {}
    for name, (size, words) in ours.registers.items():
        if ".pair" in name:
            assert len(words) == 2
            lane, first = name.split(".")[2], int(name.split(".")[3].removeprefix("pair"))
            found |= {f"aggregation.{lane}.value{value}.sums": size for value in (first, first + 32)}
        else:
            found[short(name)] = size
    assert {name: size for name, size in found.items() if name not in ONLY_TOFINO} == {
        name: size for name, size in wanted.items() if name not in ONLY_BMV2
    }
    assert found.keys() - wanted.keys() == ONLY_TOFINO


def test_packet_in_and_out(program: Node, theirs: Program) -> None:
    found = {
        annotation(header, "controller_header"): list(bits(header))
        for header in program.objects
        if header.kind == "Type_Header" and annotation(header, "controller_header")
    }
    wanted = {
        name: [(item.name, item.bitwidth) for item in fields.values()]
        for name, fields in theirs.packet_metadata.items()
    }
    assert found == wanted


def bits(header: Node) -> Iterator[tuple[str, int]]:
    for item in header.fields:
        yield item.name, item.type.size
