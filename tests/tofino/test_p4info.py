# SPDX-License-Identifier: Apache-2.0
"""The P4Info that the Tofino backend writes serves the same controller as that of the program for BMv2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from finsy.proto import p4i
from google.protobuf import text_format

from tests.support.dataplane.switch import JOBS, UPLINKS, WORKERS
from tests.support.tofino.builds import PROFILES, tofino


def read(path: Path) -> p4i.P4Info:
    return text_format.Parse(path.read_text(), p4i.P4Info())


def contract(info: p4i.P4Info) -> dict[str, Any]:
    """Return the parts of a P4Info that a controller uses, by name: each compiler has its own ids for them."""
    actions = {one.preamble.id: one for one in info.actions}
    tables = {one.preamble.id: one.preamble.name for one in info.tables}
    return {
        "tables": {
            table.preamble.name: (
                [(one.id, one.name, one.bitwidth, one.match_type) for one in table.match_fields],
                {
                    actions[ref.id].preamble.name: [(one.id, one.name, one.bitwidth) for one in actions[ref.id].params]
                    for ref in table.action_refs
                },
                table.size,
            )
            for table in info.tables
        },
        "counters": {one.preamble.name: (one.size, one.spec.unit) for one in info.counters},
        "direct counters": {
            one.preamble.name: (tables[one.direct_table_id], one.spec.unit) for one in info.direct_counters
        },
        "meters": {one.preamble.name: (one.size, one.spec.unit) for one in info.meters},
        "packets": {
            one.preamble.name: [(item.id, item.name, item.bitwidth) for item in one.metadata]
            for one in info.controller_packet_metadata
        },
    }


@pytest.mark.parametrize("name", PROFILES)
def test_contract(name: str) -> None:
    found, wanted = (contract(read(path)) for path in (tofino.p4info(name), tofino.COMPILED / "p4info.txtpb"))
    if not tofino.PROFILES[name].can_be_leaf:
        del wanted["tables"][UPLINKS]
    del wanted["tables"][WORKERS][1]["SwitchEgress.delivery.address_in_vlan"]
    assert wanted["tables"][JOBS][0].pop()[1] == "vlan"
    assert found == in_ipv4(wanted)


def in_ipv4(contract: Any) -> Any:
    """Return the contract with addresses of 32 bits."""
    if isinstance(contract, dict):
        return {key: in_ipv4(value) for key, value in contract.items()}
    if isinstance(contract, list | tuple):
        return type(contract)(map(in_ipv4, contract))
    return 32 if contract == 128 else contract


def registers(path: Path) -> dict[str, int]:
    return {one.preamble.name.removeprefix("SwitchIngress.aggregation."): one.size for one in read(path).registers}


@pytest.mark.parametrize("name", PROFILES)
def test_registers(name: str) -> None:
    """Their number and size tell the controller lanes, block size and slots."""
    profile = tofino.PROFILES[name]
    ours, theirs = registers(tofino.p4info(name)), registers(tofino.COMPILED / "p4info.txtpb")
    assert set(ours.values()) == {2 * profile.slots}
    kind, number = ("value", profile.block_size) if profile.block_size == 32 else ("pair", profile.block_size // 2)
    assert {one for one in ours if ".sums" in one} == {f"lane0.{kind}{index}.sums" for index in range(number)}
    in_one = {one for one in ours.keys() ^ theirs.keys() if one.startswith("slot_state.")}
    only_leaf = set() if profile.can_be_leaf else {"slot_state.partials"}
    assert in_one == {"slot_state.rounds", "slot_state.operations"} | only_leaf


@pytest.mark.parametrize("name", PROFILES)
def test_ports(name: str) -> None:
    """Annotations of the counter of outcomes tell a control plane which ports a build was made for."""
    profile = tofino.PROFILES[name]
    (outcomes,) = (one for one in read(tofino.p4info(name)).counters if one.preamble.name.endswith(".outcomes"))
    second = [f"@recirculation_port({profile.recirculation_port})"] if profile.has_second_pass else []
    assert outcomes.preamble.annotations == [f"@cpu_port({profile.cpu_port})", *second]
