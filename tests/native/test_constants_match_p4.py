# SPDX-License-Identifier: Apache-2.0
"""protocol.h says what p4src/include/constants.p4 says."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def numbers(pattern: str, text: str) -> dict[str, int]:
    return {match[1]: int(match[2], 0) for match in re.finditer(pattern, text, re.MULTILINE)}


def test_constants() -> None:
    p4 = (ROOT / "p4src/include/constants.p4").read_text()
    wanted = numbers(r"^const bit<\d+>\s+(\w+)\s*=\s*(\w+);", p4) | numbers(r"^#define (OUTCOMES) (\d+)", p4)
    c = (ROOT / "targets/csrc/protocol.h").read_text()
    found = numbers(r"^#define (\w+) (\w+)(?: //.*)?$", c.replace("#define NATIVE_PROTOCOL_H\n", "")) | numbers(
        r"^\s+(\w+) = (\w+),$", c
    )
    assert len(wanted) > 25
    assert {name: found.get(name) for name in wanted} == wanted
