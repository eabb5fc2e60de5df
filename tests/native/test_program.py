# SPDX-License-Identifier: Apache-2.0
"""Only the aggregator's own program runs; any other is refused, and the message says what is different."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from p4reduce_targets.native import load
from p4reduce_targets.native.program import Layout, check

COMPILED = Path(__file__).resolve().parents[2] / "p4src" / "compiled" / "p4reduce.json"


def test_the_shipped_program_is_ours() -> None:
    assert check(COMPILED.read_bytes()) == Layout(lanes=4, block_size=64, halves=1024, cpu_port=510, max_growth=512)


def table(program: Any, name: str) -> Any:
    return next(one for pipeline in program["pipelines"] for one in pipeline["tables"] if one["name"] == name)


def wider_key(program: Any) -> None:
    table(program, "SwitchIngress.aggregation.admission.jobs")["key"][0]["target"] = ["ipv4", "dst"]


def other_default(program: Any) -> None:
    table(program, "SwitchIngress.forwarding.mac_addresses")["default_entry"]["action_id"] = 0


def no_table(program: Any) -> None:
    program["pipelines"][1]["tables"].remove(table(program, "SwitchEgress.delivery.workers"))


def smaller_counter(program: Any) -> None:
    program["counter_arrays"][0]["size"] = 5


def register_gone(program: Any) -> None:
    del program["register_arrays"][-1]


def uneven_registers(program: Any) -> None:
    program["register_arrays"][7]["size"] = 8


def other_header(program: Any) -> None:
    next(kind for kind in program["header_types"] if kind["name"] == "aggregation_h")["fields"][1][1] = 12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (wider_key, r"key of SwitchIngress.aggregation.admission.jobs is .*'ingress_port', 32"),
        (other_default, "default action of SwitchIngress.forwarding.mac_addresses is"),
        (no_table, "the set of tables is"),
        (smaller_counter, "the set of counters is"),
        (register_gone, "registers are not those of the slots"),
        (uneven_registers, "registers are not those of the slots"),
        (other_header, "header aggregation is version 4, op 12"),
    ],
)
def test_another_program_is_refused_by_name(change: Callable[[Any], None], message: str) -> None:
    program = json.loads(COMPILED.read_bytes())
    change(program)
    with pytest.raises(ValueError, match=message):
        check(json.dumps(program).encode())


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"[]", b"{}", b'{"header_types": 1}'])
def test_what_is_no_program_at_all_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="not a program of BMv2"):
        check(text)


def test_another_cpu_port_is_refused() -> None:
    with pytest.raises(ValueError, match=r"for CPU port 510, and this switch has CPU port 5: .*--cpu-port 510"):
        load(COMPILED.read_bytes(), cpu_port=5)
