# SPDX-License-Identifier: Apache-2.0
"""Check that the parsers of Tofino's assembly branch as their P4 source does.

The check compares the number of paths from a parser's first state to its end. The compiler may split a state, merge
two, or copy one, and none of that changes the number; a branch that is lost does.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

PARSERS = {"ingress": "IngressParser", "egress": "EgressParser"}  # section of the assembly -> parser of the source
ARCHITECTURES = ("tna.p4", "t2na.p4")  # parsers take nothing from these that matters here
# States that the compiler adds: a chip of the first generation wants frames of a least length at egress.
ADDED = "min_parse_depth"
ENDS = ("accept", "reject", "end", "END")

FAULT = (
    "p4c loses the selects of parsers from its pull request 5063 (16 February 2026) to 5753 (September 2026), release "
    "1.2.5.16 among them, and such a binary acts on no packet. Build p4c from a revision that has "
    "https://github.com/p4lang/p4c/pull/5753"
)

States = Mapping[str, Sequence[str]]  # state -> the next state of each branch


class BranchesLost(RuntimeError):
    """The assembly's parsers branch less than the source's; the message says where, and what to do."""


def check(assembly: str, source: Path, options: Iterable[str], cpp: str) -> None:
    """Raise BranchesLost, or ValueError for what is no assembly. `options` are those that p4c was given (-D...)."""
    written, made = of_source(source, options, cpp), of_assembly(assembly)
    found = []
    for gress in PARSERS:
        wanted, there = paths(*written[gress]), paths(*made[gress])
        if there < wanted:
            found.append(f"the {gress} parser of the assembly has {there} of the {wanted} paths that its source has")
    if found:
        raise BranchesLost(f"{'; '.join(found)}. {FAULT}")


def paths(start: str, states: States) -> int:
    """Return the number of paths from `start` to an end. Raises ValueError for a loop, or a state that is not there."""
    known: dict[str, int] = {}

    def of(state: str, on_the_way: tuple[str, ...]) -> int:
        if state in ENDS or state.startswith(ADDED):
            return 1
        if state in on_the_way:
            raise ValueError(f"parser state {state} leads to itself")
        if state not in states:
            raise ValueError(f"there is no parser state {state}")
        if state not in known:
            known[state] = sum(of(one, (*on_the_way, state)) for one in states[state])
        return known[state]

    return of(start, ())


def of_assembly(text: str) -> dict[str, tuple[str, States]]:
    """First state and states of each parser, of rows that can match alone."""
    made = {}
    for gress in PARSERS:
        section = re.search(rf"^parser {gress}:\n((?:[ \t].*\n|\s*\n)*)", text + "\n", re.MULTILINE)
        start = section and re.search(r"^  start: *(?:\[ *)?([^\s,\]]+)", section[1], re.MULTILINE)
        if section is None or start is None:
            raise ValueError(f"the assembly has no parser {gress} with a first state")
        made[gress] = (start[1], {name: _branches(body) for name, body in _states(section[1])})
    return made


def _states(section: str) -> list[tuple[str, str]]:
    _, _, states = section.partition("\n  states:\n")
    parts = re.split(r"^    (?! )(\S+):\n", states, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def _branches(body: str) -> list[str]:
    """Return the next states of a state's rows, without rows that an earlier one takes every packet from."""
    rows = re.split(r"^      (\*|0[xXoObB][0-9a-fA-F*]+|\d+):\n", body, flags=re.MULTILINE)
    matches = re.search(r"^      match: *\[ *[^\]\s]", rows[0], re.MULTILINE) is not None
    earlier: list[str] = []
    following = []
    for pattern, row in zip(rows[1::2], rows[2::2], strict=True):
        bits = _bits(pattern) if matches else "*"
        if any(_covers(one, bits) for one in earlier):
            continue
        earlier.append(bits)
        goes = re.search(r"^        next: *(\S+)", row, re.MULTILINE)
        following.append(goes[1] if goes else "end")
    return following


def _bits(pattern: str) -> str:
    """Return a row's pattern, a character a bit; "*" matches any number of bits from the left."""
    kind, digits = pattern[:2].lower(), pattern[2:].lower()
    if pattern == "*":
        return pattern
    if kind == "0b":
        return digits
    if width := {"0x": 4, "0o": 3}.get(kind):
        return "".join("*" * width if digit == "*" else f"{int(digit, 16):0{width}b}" for digit in digits)
    return f"{int(pattern):b}"


def _covers(wide: str, narrow: str) -> bool:
    width = max(len(wide), len(narrow))
    wide, narrow = (one.rjust(width, "*" if one == "*" else "0") for one in (wide, narrow))
    return all(one in ("*", other) for one, other in zip(wide, narrow, strict=True))


def of_source(source: Path, options: Iterable[str], cpp: str) -> dict[str, tuple[str, States]]:
    """Return the same of the P4 program, as the preprocessor `cpp` leaves it."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ARCHITECTURES:
            Path(folder, name).touch()
        command = [cpp, "-P", "-undef", "-nostdinc", "-x", "assembler-with-cpp", f"-I{folder}", *options, str(source)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    made = {}
    for gress, name in PARSERS.items():
        head = re.search(rf"\bparser\s+{name}\s*\(", text)
        if head is None:
            raise ValueError(f"{source} has no parser {name}")
        body = _block(text, text.index("{", head.end()))
        states = {
            one[1]: _transitions(_block(body, one.end() - 1)) for one in re.finditer(r"\bstate\s+(\w+)\s*{", body)
        }
        made[gress] = ("start", states)
    return made


def _block(text: str, start: int) -> str:
    """Return the text between the brace at `start` and its partner."""
    depth = 0
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start + 1 : at]
    raise ValueError(f"a brace is not closed: {text[start : start + 60]}")


def _transitions(state: str) -> list[str]:
    _, _, transition = state.rpartition("transition")
    if not transition.lstrip().startswith("select"):
        return [transition.strip(" \t\n;") or "reject"]
    return re.findall(r":\s*(\w+)\s*;", _block(transition, transition.index("{")))
