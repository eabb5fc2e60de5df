# SPDX-License-Identifier: Apache-2.0
"""Arguments that may also come from the environment, checked with errors that name what is accepted, and the variable
where the value is from there. An empty variable is as one that is not set."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection
from typing import TypeVar

from p4reduce.control.channel import Tls
from p4reduce.local.host import LOCAL_CHOICES, LocalChoice, copies_wanted
from p4reduce.protocol.constants import MAX_RANKS, MAX_THREADS
from p4reduce.tensors.spec import WIRE_CHOICES, WireChoice
from p4reduce.transport import KINDS

TIMEOUT = 1800.0  # seconds; torch.distributed's for Gloo
MAX_SLOTS = 32768  # the packet's slot field counts 65,536 halves
LONGEST_QUEUE = 7 * 86400.0  # seconds
MAX_LINK = 10**18  # bits a second, which ranks tell each other in 64 bits
_LARGEST_FLOAT32 = 2.0**128 - 2.0**104
_Choice = TypeVar("_Choice", bound=str)
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9}


def text(argument: str, value: str | None, variable: str, default: str) -> str:
    """`value`, else the environment's `variable`, else `default`; not empty."""
    called, said = said_by(argument, value, variable)
    return name(called, default if said is None else said)


def said_by(argument: str, value: object, variable: str) -> tuple[str, object]:
    """`value`, else the environment's `variable`, and what errors call it; None where neither is given."""
    if value is None and (written := os.environ.get(variable)):
        return variable, written
    return argument, value


def name(argument: str, value: object) -> str:
    """`value` as a non-empty string."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{argument}={value!r}: must be a non-empty string")
    return value


def token(value: str | None) -> str | None:
    """Return the controller's token; an empty one is none."""
    return value if value is not None else os.environ.get("P4REDUCE_TOKEN") or None


def switch(value: str | None) -> str:
    """Return the name of the switch that this rank is at; "" for whichever hears it."""
    return value if value is not None else os.environ.get("P4REDUCE_SWITCH", "")


def tls(value: Tls | None) -> Tls | None:
    """How to trust the controller; None for a connection that is not encrypted."""
    ca, cert, key = (os.environ.get(f"P4REDUCE_TLS_{what}") or None for what in ("CA", "CERT", "KEY"))
    if (cert is None) != (key is None):
        raise ValueError("P4REDUCE_TLS_CERT and P4REDUCE_TLS_KEY: give both or neither")
    return value if value is not None or not (ca or cert) else Tls(ca=ca, cert=cert, key=key)


def transport(value: str | None) -> str:
    return _one_of("transport", value, "P4REDUCE_TRANSPORT", "udp", KINDS)


def wire(value: str | None) -> WireChoice:
    """How values travel, by default P4REDUCE_WIRE, else "auto"."""
    return _one_of("wire", value, "P4REDUCE_WIRE", "auto", WIRE_CHOICES)


def local(value: str | None) -> LocalChoice:
    """Whether ranks of one host reduce in its memory, by default as P4REDUCE_LOCAL says, else "auto"."""
    copies_wanted()  # complains of a wrong choice before there is anything to undo
    return _one_of("local", value, "P4REDUCE_LOCAL", "auto", LOCAL_CHOICES)


def threads(value: int | None) -> int:
    """Of the engine, by default P4REDUCE_THREADS, else 1."""
    called, said = _number_said_by("threads", value, "P4REDUCE_THREADS")
    return integer(called, 1 if said is None else said, 1, MAX_THREADS)


def queue() -> float:
    """Seconds that a rank waits for slots, as P4REDUCE_QUEUE says, else none."""
    written = os.environ.get("P4REDUCE_QUEUE") or "0"
    try:
        said = float(written)
    except ValueError:
        said = math.nan
    if not 0 <= said <= LONGEST_QUEUE:
        raise ValueError(f"P4REDUCE_QUEUE={written!r}: must be a number of seconds from 0 to {LONGEST_QUEUE:g}")
    return said


def link(value: str | None) -> int:
    """Bits a second, by default those of P4REDUCE_LINK; 0 where neither says."""
    called, said = said_by("link", value, "P4REDUCE_LINK")
    if said is None or said == "":
        return 0
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([kmg])bit", said.strip().lower()) if isinstance(said, str) else None
    if match is None or not 1000 <= (rate := float(match[1]) * _UNITS[match[2]]) <= MAX_LINK:
        raise ValueError(
            f"{called}={said!r}: accepted are rates such as 200mbit, 1gbit and 2.5gbit, from 1kbit to "
            f"{MAX_LINK // 10**9}gbit"
        )
    return round(rate)


def rank_of_world(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Checked (rank, world_size), by default from RANK and WORLD_SIZE, as torchrun sets them."""
    size = integer(*needed("world_size", world_size, "WORLD_SIZE"), 1, MAX_RANKS)
    return integer(*needed("rank", rank, "RANK"), 0, size - 1), size


def needed(argument: str, value: int | None, variable: str) -> tuple[str, object]:
    """As `said_by`, of a number that must be given."""
    called, said = _number_said_by(argument, value, variable)
    if said is None:
        raise ValueError(f"{argument} is not given, and neither is the environment variable {variable}")
    return called, said


def integer(name: str, value: object, least: int, most: int) -> int:
    """`value` as an int between `least` and `most`."""
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    raise ValueError(f"{name}={value!r}: must be an integer from {least} to {most}")


def seconds(name: str, value: object) -> float:
    """`value` as a positive, finite float."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0:
        return float(value)
    raise ValueError(f"{name}={value!r}: must be a positive number of seconds")


def number(name: str, value: object) -> float:
    """`value` as a float that is finite as a float32, too."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _LARGEST_FLOAT32:
        return float(value)
    raise ValueError(f"{name}={value!r}: must be a number that float32 has")


def _one_of(argument: str, value: str | None, variable: str, default: str, choices: Collection[_Choice]) -> _Choice:
    """As `text`, one of the choices."""
    called, said = said_by(argument, value, variable)
    chosen = default if said is None else said
    for known in choices:
        if chosen == known:
            return known
    raise ValueError(f"{called}={chosen!r}: accepted are {', '.join(choices)}")


def _number_said_by(argument: str, value: object, variable: str) -> tuple[str, object]:
    """As `said_by`, as an int where the variable is one in ASCII digits."""
    called, said = said_by(argument, value, variable)
    if called == variable and re.fullmatch(r"-?[0-9]{1,18}", str(said)):
        return called, int(str(said))
    return called, said
