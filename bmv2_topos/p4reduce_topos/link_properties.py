# SPDX-License-Identifier: Apache-2.0
"""Properties of links, as text on the command line and in files."""

from __future__ import annotations

import re

from p4reduce.errors import P4ReduceError
from p4reduce_bench.allreduce.grid import bits_per_second
from p4reduce_topos.model import LinkProperties

# An example with every property, for help and errors.
LINK_PROPERTIES = "rate=100mbit,queue=64kB,delay=5ms,jitter=1ms,loss=0.01,duplicate=0.01,corrupt=0.01"


def parse_link_properties(option: str, text: str) -> LinkProperties:
    """Parse a text such as "rate=100mbit,delay=5ms,queue=64kB,loss=0.01". Raises P4ReduceError or ValueError.

    option: the option or key that errors name.
    """
    made: dict[str, float] = {}
    for key, value in pairs(option, text):
        time = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s)", value)
        size = re.fullmatch(r"(\d+)(|k|M)B", value)
        share = re.fullmatch(r"\d*\.?\d+", value)
        if key == "rate":
            made[key] = bits_per_second(value, option)
        elif key in ("delay", "jitter") and time:
            made[key] = float(time[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[time[2]]
        elif key == "queue" and size:
            made[key] = int(size[1]) * {"": 1, "k": 1000, "M": 1_000_000}[size[2]]
        elif key in ("loss", "duplicate", "corrupt") and share:
            made[key] = float(value)
        else:
            raise P4ReduceError(f"{option} {text}: accepted are some of {LINK_PROPERTIES}")
    return LinkProperties(**made)  # type: ignore[arg-type]


def pairs(option: str, text: str) -> list[tuple[str, str]]:
    """Split "NAME=VALUE,NAME=VALUE" into names and values. Raises P4ReduceError."""
    found = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    if not all(equals for _, equals, _ in found):
        raise P4ReduceError(f"{option} {text}: accepted is NAME=VALUE, several with commas between")
    return [(key, value) for key, _, value in found]
