# SPDX-License-Identifier: Apache-2.0
"""Packet tests in STF, the format of p4c's tests: table entries, an input packet, and the expected output."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .p4runtime import Entry

PATHS = Path(__file__).resolve().parents[2] / "dataplane" / "paths"
NO_PORT = "0"  # no switch under test has it, so a packet sent there is dropped
ADD = re.compile(r'add "?([\w.]+)"? (?:\d+ )?(.*?)"?([\w.]+)"?\((.*)\)')
VALUE = re.compile(r'"?([\w.]+)"?:(\w[\w*]*)')


@dataclass(frozen=True)
class PacketTest:
    """A packet test.

    expected: the port and the pattern of each output. A pattern is hexadecimal, with * for any digit.
    """

    name: str
    entries: tuple[Entry, ...]
    port: int
    frame: bytes
    expected: tuple[tuple[int, str], ...]  # (port, pattern)

    def accepts(self, outputs: list[tuple[int, bytes]]) -> bool:
        """Return whether the outputs are exactly the expected frames."""
        return len(outputs) == len(self.expected) and all(
            port == wanted and re.fullmatch(pattern.replace("*", "."), frame.hex(), re.IGNORECASE)
            for (port, frame), (wanted, pattern) in zip(outputs, self.expected, strict=True)
        )


def packet_tests(program: str) -> list[PacketTest]:
    """Return the path tests of a program."""
    tests = (PATHS / f"{program}.stf").read_text().split("\n# test ")[1:]
    return [_packet_test(text) for text in tests]


def _packet_test(text: str) -> PacketTest:
    name, *lines = text.split("\n")
    entries, port, frame, expected = [], 0, b"", []
    for line in filter(None, lines):
        word, *rest = line.split()
        if word == "add":
            entries.append(_entry(line))
        elif word == "packet":
            port, frame = int(rest[0]), bytes.fromhex(rest[1])
        elif word == "expect" and rest[0] != NO_PORT:
            expected.append((int(rest[0]), rest[1].rstrip("$")))
        elif word != "expect":
            raise ValueError(f"test {name}: {word} is not a statement that this program's tests need")
    return PacketTest(name, tuple(entries), port, frame, tuple(expected))


def _entry(line: str) -> Entry:
    found = ADD.fullmatch(line)
    assert found is not None, line
    table, matches, action, params = found.groups()
    return Entry(table, dict(map(_match, VALUE.findall(matches))), action, dict(map(_match, VALUE.findall(params))))


def _match(item: tuple[str, str]) -> tuple[str, int | tuple[int, int]]:
    """Return a name and its value. A binary value that ends with * is a prefix: (value, prefix length)."""
    name, digits = item
    if not digits.startswith("0b"):
        return name, int(digits, 16)
    bits = digits[2:]
    return name, (int(bits.replace("*", "0"), 2), len(bits.rstrip("*")))
