# SPDX-License-Identifier: Apache-2.0
"""A description of the program that the C code implements, and the check that a compiled program is the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from p4reduce.protocol.constants import AGGREGATION_PORT, BLOCK_SIZES_ACCEPTED, LANES_ACCEPTED
from p4reduce_targets.native.numbers import ActionId, CounterId, TableId


@dataclass(frozen=True, slots=True)
class Layout:
    """The build options of a compiled program."""

    lanes: int
    block_size: int
    halves: int
    cpu_port: int
    max_growth: int


@dataclass(frozen=True, slots=True)
class Action:
    """Parameters are (name, bits)."""

    number: ActionId
    parameters: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """Fields are (name, bits)."""

    number: TableId
    fields: tuple[tuple[str, int], ...]
    actions: Mapping[str, Action]
    miss: str  # the program's default action
    size: int
    lpm: bool = False


@dataclass(frozen=True, slots=True)
class Counter:
    number: CounterId
    size: int


_NO_ACTION = {"NoAction": Action(ActionId.NO_ACTION)}
_MAC = (("mac", 48),)
_PORT = (("port", 9),)
_ROUTE = (("port", 9), ("source_mac", 48), ("next_hop_mac", 48))
_ADMIT = (("worker_bit", 32), ("full_bitmap", 32), ("pool_base", 16), ("pool_halves", 16), ("group", 16))
_UPLINK = (("port", 9), ("mac", 48), ("ip", 32), ("udp_port", 16), ("worker", 8))
_JOBS = (
    *(("ingress_port", 9), ("source_ip", 32), ("source_port", 16)),
    *(("job", 16), ("generation", 16), ("worker", 8)),
)


def _one_action(name: str, number: ActionId, *parameters: tuple[str, int]) -> dict[str, Action]:
    return {name: Action(number, parameters), **_NO_ACTION}


TABLES: Mapping[str, Table] = {
    "SwitchIngress.drop_simulator.loss_rates": Table(
        TableId.LOSS_IN,
        _PORT,
        _one_action("SwitchIngress.drop_simulator.lose", ActionId.LOSE, ("threshold", 32)),
        "NoAction",
        512,
    ),
    "SwitchIngress.own_address.own_addresses": Table(
        TableId.OWN_ADDRESSES,
        (("address", 32),),
        _one_action("SwitchIngress.own_address.own", ActionId.OWN, *_MAC),
        "NoAction",
        64,
    ),
    "SwitchIngress.own_address.own_sources": Table(
        TableId.OWN_SOURCES,
        (("address", 32),),
        _one_action("SwitchIngress.own_address.forged", ActionId.FORGED),
        "NoAction",
        64,
    ),
    "SwitchIngress.aggregation.admission.jobs": Table(
        TableId.JOBS,
        _JOBS,
        _one_action("SwitchIngress.aggregation.admission.admit", ActionId.ADMIT, *_ADMIT),
        "NoAction",
        4096,
    ),
    "SwitchIngress.forwarding.mac_addresses": Table(
        TableId.MAC_ADDRESSES,
        _MAC,
        {
            "SwitchIngress.forwarding.forward": Action(ActionId.FORWARD, _PORT),
            "SwitchIngress.forwarding.flood": Action(ActionId.FLOOD, (("group", 16),)),
            "SwitchIngress.forwarding.discard": Action(ActionId.DISCARD),
        },
        "SwitchIngress.forwarding.discard",
        4096,
    ),
    "SwitchIngress.forwarding.router_macs": Table(TableId.ROUTER_MACS, _MAC, _NO_ACTION, "NoAction", 64),
    "SwitchIngress.forwarding.ipv4_routes": Table(
        TableId.ROUTES,
        (("destination", 32),),
        {
            "SwitchIngress.forwarding.route": Action(ActionId.ROUTE, _ROUTE),
            "SwitchIngress.forwarding.unroutable": Action(ActionId.UNROUTABLE),
        },
        "SwitchIngress.forwarding.unroutable",
        1024,
        lpm=True,
    ),
    "SwitchEgress.drop_simulator.loss_rates": Table(
        TableId.LOSS_OUT,
        _PORT,
        _one_action("SwitchEgress.drop_simulator.lose", ActionId.LOSE, ("threshold", 32)),
        "NoAction",
        512,
    ),
    "SwitchEgress.delivery.workers": Table(
        TableId.WORKERS,
        (("job", 16), ("instance", 16)),
        _one_action("SwitchEgress.delivery.address", ActionId.ADDRESS, ("mac", 48), ("ip", 32), ("udp_port", 16)),
        "NoAction",
        4096,
    ),
    "SwitchIngress.aggregation.uplink.uplinks": Table(
        TableId.UPLINKS,
        (("job", 16),),
        _one_action("SwitchIngress.aggregation.uplink.uplink", ActionId.UPLINK, *_UPLINK),
        "NoAction",
        4096,
    ),
}

COUNTERS: Mapping[str, Counter] = {
    "SwitchIngress.drop_simulator.losses": Counter(CounterId.LOSSES_IN, 512),
    "SwitchIngress.aggregation.outcomes": Counter(CounterId.OUTCOMES, 17),
    "SwitchEgress.drop_simulator.losses": Counter(CounterId.LOSSES_OUT, 512),
    "SwitchIngress.forgeries": Counter(CounterId.FORGERIES, 512),
}

DIRECT_COUNTER_TABLE = "SwitchIngress.aggregation.admission.jobs"
"""The table whose entries count, if the program has any that do; those before the members' counters have none."""

METERS: Mapping[str, int] = {"SwitchIngress.aggregation.hellos": 512}
"""Name -> cells. All count packets."""

_HEADERS = {
    "packet_out": "through_pipeline 1, padding 6, egress_port 9, multicast_group 16",
    "packet_in": "padding 7, ingress_port 9, bitmap 32",
    "aggregation": "version 4, op 4, active 8, present 8, worker 8, job 16, generation 16, slot 16, seq 32, "
    "fingerprint 32",
}


@dataclass
class _Differences:
    """The differences between a compiled program and the one that the C code implements."""

    found: list[str] = field(default_factory=list)

    def compare(self, what: str, expected: object, found: object) -> None:
        if expected != found:
            self.found.append(f"{what} is {found}, not {expected}")


def check(program: bytes) -> Layout:
    """Return the build options of the aggregator's program; for another, raise ValueError with the differences."""
    try:
        return _check(json.loads(program))
    except (KeyError, TypeError, IndexError, AttributeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"not a program of BMv2, as p4c-bm2-ss makes them: {type(error).__name__}: {error}") from None


def _check(program: dict[str, Any]) -> Layout:
    differences = _Differences()
    types = {kind["name"]: {f[0]: f[1] for f in kind["fields"]} for kind in program["header_types"]}
    headers = {header["name"]: types[header["header_type"]] for header in program["headers"]}
    for name, fields in _HEADERS.items():
        there = ", ".join(f"{key} {bits}" for key, bits in headers.get(name, {}).items())
        differences.compare(f"header {name}", fields, there)
    _check_tables(program, headers, differences)
    found = {array["name"]: array["size"] for array in program["counter_arrays"] if not array.get("is_direct")}
    differences.compare("the set of counters", {name: one.size for name, one in COUNTERS.items()}, found)
    direct = {array["binding"] for array in program["counter_arrays"] if array.get("is_direct")}
    differences.compare("the set of other tables with counters", [], sorted(direct - {DIRECT_COUNTER_TABLE}))
    meters = {array["name"]: (array["size"], array["type"]) for array in program["meter_arrays"]}
    differences.compare("the set of meters", {name: (size, "packets") for name, size in METERS.items()}, meters)
    cpu_port = _parser_constant(program, "start", "parse_packet_out", differences)
    port = _parser_constant(program, "parse_udp", "parse_aggregation", differences)
    differences.compare("the UDP port of the aggregator", AGGREGATION_PORT, port)
    lanes, block_size, halves = _registers(program, differences)
    max_growth = _max_growth(program, differences)
    if differences.found:
        raise ValueError(
            "target native runs only the aggregator's own program, p4reduce, and this is another program: "
            + "; ".join(differences.found)
        )
    return Layout(lanes, block_size, halves, cpu_port, max_growth)


def _check_tables(program: dict[str, Any], headers: dict[str, dict[str, int]], differences: _Differences) -> None:
    actions = {
        action["id"]: (action["name"], [(item["name"], item["bitwidth"]) for item in action["runtime_data"]])
        for action in program["actions"]
    }
    found = {}
    for pipeline in program["pipelines"]:
        for table in pipeline["tables"]:
            if not table["name"].startswith("tbl_"):  # made by p4c: one action each
                found[table["name"]] = table
    differences.compare("the set of tables", sorted(TABLES), sorted(found))
    for name in TABLES.keys() & found.keys():
        expected, table = TABLES[name], found[name]
        kind = "lpm" if expected.lpm else "exact"
        keys = [(key["match_type"], key["name"], _width(key["target"], headers)) for key in table["key"]]
        differences.compare(f"key of {name}", [(kind, key, bits) for key, bits in expected.fields], keys)
        has = dict(actions[number] for number in table["action_ids"])
        wanted = {action: list(one.parameters) for action, one in expected.actions.items()}
        differences.compare(f"the set of actions of {name}", wanted, has)
        differences.compare(f"default action of {name}", expected.miss, actions[table["default_entry"]["action_id"]][0])
        differences.compare(f"size of {name}", expected.size, table["max_size"])


def _width(target: list[str], headers: dict[str, dict[str, int]]) -> int:
    return headers[target[0]][target[1]]


def _parser_constant(program: dict[str, Any], state: str, next_state: str, differences: _Differences) -> int:
    """Return the value that selects the transition from one parser state to the other."""
    for item in program["parsers"][0]["parse_states"]:
        for transition in item["transitions"]:
            if item["name"] == state and transition["next_state"] == next_state and transition["value"]:
                return int(transition["value"], 16)
    differences.found.append(f"the parser does not go from {state} to {next_state}")
    return 0


def _registers(program: dict[str, Any], differences: _Differences) -> tuple[int, int, int]:
    """Return lanes, block size and halves, from the names and sizes of the registers."""
    sizes = {array["name"]: array["size"] for array in program["register_arrays"]}
    where = "SwitchIngress.aggregation"
    sums = [re.fullmatch(rf"{where}\.lane(\d+)\.value(\d+)\.sums", name) for name in sizes]
    lanes = max((int(match[1]) + 1 for match in sums if match), default=0)
    block_size = max((int(match[2]) + 1 for match in sums if match), default=0)
    halves = sizes.get(f"{where}.slot_state.seqs", 0)
    expected = {f"{where}.slot_state.{name}" for name in ("seqs", "bitmaps", "fingerprints", "partials")}
    expected |= {f"{where}.key{lane}.keys" for lane in range(lanes)}
    expected |= {f"{where}.lane{lane}.value{value}.sums" for lane in range(lanes) for value in range(block_size)}
    if lanes not in LANES_ACCEPTED or block_size not in BLOCK_SIZES_ACCEPTED:
        differences.found.append(
            f"{lanes} lanes of {block_size} values; accepted are {LANES_ACCEPTED} of {BLOCK_SIZES_ACCEPTED}"
        )
    elif sizes.keys() != expected or set(sizes.values()) != {halves} or not 2 <= halves <= 1 << 16:
        differences.found.append("registers are not those of the slots")
    return lanes, block_size, halves


def _max_growth(program: dict[str, Any], differences: _Differences) -> int:
    """Return MAX_GROWTH, from the condition that rejects malformed packets."""
    for pipeline in program["pipelines"]:
        for conditional in pipeline["conditionals"]:
            for operation in _operations(conditional["expression"]):
                left, right = operation.get("left"), operation.get("right")
                if operation["op"] == ">" and left and right and str(left["value"][-1]).endswith("growth"):
                    return int(right["value"], 16)
    differences.found.append("nothing limits an answer's growth by MAX_GROWTH")
    return 0


def _operations(node: object) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if "op" in node:
            yield node
        for item in node.values():
            yield from _operations(item)
