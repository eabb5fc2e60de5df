# SPDX-License-Identifier: Apache-2.0
"""p4src/include/constants.p4 is where the protocol's numbers live; Python repeats them."""

import re
from pathlib import Path

from p4reduce.protocol import constants
from p4reduce.protocol.constants import Op, Outcome

P4SRC = Path(__file__).parents[2] / "p4src" / "include"


def p4_constants() -> dict[str, int]:
    text = (P4SRC / "constants.p4").read_text()
    found = re.findall(r"^const bit<\d+> +(\w+)\s*= (\w+);", text, re.M) + re.findall(
        r"^#define (\w+) (\d+)\b", text, re.M
    )
    return {name: int(value, 0) for name, value in found}


def test_numbers() -> None:
    p4 = p4_constants()
    assert p4["PROTOCOL_VERSION"] == constants.PROTOCOL_VERSION
    assert p4["AGGREGATION_PORT"] == constants.AGGREGATION_PORT
    assert p4["NO_KEY"] == constants.NO_KEY
    assert p4["LANES"] == constants.DEFAULT_LANES
    assert p4["BLOCK_SIZE"] == constants.DEFAULT_BLOCK_SIZE
    assert p4["MAX_GROWTH"] == constants.MAX_GROWTH


def test_ops() -> None:
    assert {f"OP_{op.name}": op.value for op in Op} == {
        name: value for name, value in p4_constants().items() if name.startswith("OP_")
    }


def test_outcomes() -> None:
    p4 = p4_constants()
    assert {f"OUTCOME_{outcome.name}": outcome.value for outcome in Outcome} == {
        name: value for name, value in p4.items() if name.startswith("OUTCOME_")
    }
    assert len(Outcome) == p4["OUTCOMES"]


def test_build_parameters() -> None:
    text = (P4SRC / "repeat.p4").read_text()
    for name, accepted in (("LANES", constants.LANES_ACCEPTED), ("BLOCK_SIZE", constants.BLOCK_SIZES_ACCEPTED)):
        assert tuple(map(int, re.findall(rf"^#(?:if|elif) {name} == (\d+)", text, re.M))) == accepted


def test_header_layout() -> None:
    """The fields and widths of aggregation_h are those that the codec packs."""
    text = (P4SRC / "headers.p4").read_text()
    (body,) = re.findall(r"header aggregation_h \{(.*?)\}", text, re.S)
    assert re.findall(r"bit<(\d+)>\s+(\w+);", body) == [
        ("4", "version"),
        ("4", "op"),
        ("8", "active"),
        ("8", "present"),
        ("8", "worker"),
        ("16", "job"),
        ("16", "generation"),
        ("16", "slot"),
        ("32", "seq"),
        ("32", "fingerprint"),
    ]
