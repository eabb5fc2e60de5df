# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments that may also come from environment variables.

Errors name what is accepted, and the variable if the value comes from one. An empty variable counts as not set.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection
from typing import TypeVar

from p4reduce.control.channel import Tls
from p4reduce.control.messages import LONGEST_QUEUE
from p4reduce.local.host import LOCAL_CHOICES, LocalChoice, copies_wanted
from p4reduce.protocol.constants import MAX_RANKS, MAX_THREADS
from p4reduce.tensors.spec import WIRE_CHOICES, WireChoice
from p4reduce.transport import KINDS

TIMEOUT = 1800.0  # seconds; the same as torch.distributed's for Gloo
MAX_SLOTS = 32768  # the packet's slot field counts 65,536 halves
MAX_LINK = 10**18  # bits a second; ranks send it to each other in 64 bits
_LARGEST_FLOAT32 = 2.0**128 - 2.0**104
_Choice = TypeVar("_Choice", bound=str)
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9}


def text(argument: str, value: str | None, variable: str, default: str) -> str:
    """Return `value`, or else the environment's `variable`, or else `default`. It must not be empty."""
    called, said = said_by(argument, value, variable)
    return name(called, default if said is None else said)


def said_by(argument: str, value: object, variable: str) -> tuple[str, object]:
    """Return the name for errors, and `value` or else the environment's `variable`; None if neither is given."""
    if value is None and (written := os.environ.get(variable)):
        return variable, written
    return argument, value


def name(argument: str, value: object) -> str:
    """Return `value`, which must be a non-empty string."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{argument}={value!r}: must be a non-empty string")
    return value


def token(value: str | None) -> str | None:
    """Return the controller's token, by default P4REDUCE_TOKEN. An empty variable counts as none."""
    return value if value is not None else os.environ.get("P4REDUCE_TOKEN") or None


def switch(value: str | None) -> str:
    """Return the name of this rank's switch, by default P4REDUCE_SWITCH; "" for the one that receives its HELLO."""
    return value if value is not None else os.environ.get("P4REDUCE_SWITCH", "")


def tls(value: Tls | None) -> Tls | None:
    """Return the TLS settings for the connection to the controller; None if it is not encrypted."""
    ca, cert, key = (os.environ.get(f"P4REDUCE_TLS_{what}") or None for what in ("CA", "CERT", "KEY"))
    if (cert is None) != (key is None):
        raise ValueError("P4REDUCE_TLS_CERT and P4REDUCE_TLS_KEY: give both or neither")
    return value if value is not None or not (ca or cert) else Tls(ca=ca, cert=cert, key=key)


def transport(value: str | None) -> str:
    return _one_of("transport", value, "P4REDUCE_TRANSPORT", "udp", KINDS)


def wire(value: str | None) -> WireChoice:
    """Return the wire, by default P4REDUCE_WIRE, or else "auto"."""
    return _one_of("wire", value, "P4REDUCE_WIRE", "auto", WIRE_CHOICES)


def local(value: str | None) -> LocalChoice:
    """Return whether ranks of one host reduce in its memory, by default P4REDUCE_LOCAL, or else "auto"."""
    copies_wanted()  # raises for a wrong choice before there is anything to undo
    return _one_of("local", value, "P4REDUCE_LOCAL", "auto", LOCAL_CHOICES)


def threads(value: int | None) -> int:
    """Return the number of the engine's threads, by default P4REDUCE_THREADS, or else 1."""
    called, said = _number_said_by("threads", value, "P4REDUCE_THREADS")
    return integer(called, 1 if said is None else said, 1, MAX_THREADS)


def queue() -> float:
    """Return the seconds that a rank waits for slots: P4REDUCE_QUEUE, or else 0."""
    written = os.environ.get("P4REDUCE_QUEUE") or "0"
    try:
        said = float(written)
    except ValueError:
        said = math.nan
    if not 0 <= said <= LONGEST_QUEUE:
        raise ValueError(f"P4REDUCE_QUEUE={written!r}: must be a number of seconds from 0 to {LONGEST_QUEUE:g}")
    return said


def link(value: str | None) -> int:
    """Return the link's bits a second, by default P4REDUCE_LINK, or 0 if neither is given."""
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
    """Return the checked (rank, world_size), by default RANK and WORLD_SIZE, which torchrun sets."""
    size = integer(*needed("world_size", world_size, "WORLD_SIZE"), 1, MAX_RANKS)
    return integer(*needed("rank", rank, "RANK"), 0, size - 1), size


def needed(argument: str, value: int | None, variable: str) -> tuple[str, object]:
    """Return the same as `said_by`, for a number that must be given."""
    called, said = _number_said_by(argument, value, variable)
    if said is None:
        raise ValueError(f"{argument} is not given, and neither is the environment variable {variable}")
    return called, said


def integer(name: str, value: object, least: int, most: int) -> int:
    """Return `value`, which must be an int between `least` and `most`."""
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    raise ValueError(f"{name}={value!r}: must be an integer from {least} to {most}")


def seconds(name: str, value: object) -> float:
    """Return `value` as a float, which must be positive and finite."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0:
        return float(value)
    raise ValueError(f"{name}={value!r}: must be a positive number of seconds")


def number(name: str, value: object) -> float:
    """Return `value` as a float, which must be finite as a float32, too."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _LARGEST_FLOAT32:
        return float(value)
    raise ValueError(f"{name}={value!r}: must be a number that float32 has")


def _one_of(argument: str, value: str | None, variable: str, default: str, choices: Collection[_Choice]) -> _Choice:
    """Return the same as `text`, which must be one of the choices."""
    called, said = said_by(argument, value, variable)
    chosen = default if said is None else said
    for known in choices:
        if chosen == known:
            return known
    raise ValueError(f"{called}={chosen!r}: accepted are {', '.join(choices)}")


def _number_said_by(argument: str, value: object, variable: str) -> tuple[str, object]:
    """Return the same as `said_by`, but an int if the variable is one in ASCII digits."""
    called, said = said_by(argument, value, variable)
    if called == variable and re.fullmatch(r"-?[0-9]{1,18}", str(said)):
        return called, int(str(said))
    return called, said
