# SPDX-License-Identifier: Apache-2.0
"""A dissector of aggregation packets for Wireshark and tshark, in Lua."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from string import Template

from p4reduce.control import jobs_pb2 as pb
from p4reduce.protocol.constants import AGGREGATION_PORT, NO_KEY, NOBODY, PROTOCOL_VERSION, SHORT_HELLO, Op
from p4reduce.protocol.header import FIELDS, FIXED, KEY
from p4reduce.trace.frames import CODECS

_TEMPLATE = Path(__file__).with_name("dissector.lua")


def lua() -> str:
    """Return the plugin's text, with the header's fields as `protocol.header` describes them."""
    return Template(_TEMPLATE.read_text()).substitute(
        version=PROTOCOL_VERSION,
        port=AGGREGATION_PORT,
        no_key=f"0x{NO_KEY:X}",
        nobody=NOBODY,
        short_hello=SHORT_HELLO,
        header_bytes=FIXED.size,
        exponent_bits=KEY[1].bits,
        ops=_table({op.value: op.name for op in Op}),
        reasons=_table({number: name.lower().replace("_", " ") for name, number in pb.AbortReason.items()}),
        fields="\n".join(f"    {{ {one} }}," for one in _fields()),
        builds=", ".join(f"{{ {codec.lanes}, {codec.block_size} }}" for codec in CODECS),
    )


def _table(names: Mapping[int, str]) -> str:
    return "{ " + ", ".join(f'[{number}] = "{name}"' for number, name in names.items()) + " }"


def _fields() -> Iterator[str]:
    """Yield each field of the header as a Lua table: its offset, its size, and a mask if it is a part of a byte."""
    bit = 0
    for field in FIELDS:
        size = -(-field.bits // 8)
        mask = (1 << field.bits) - 1 << 8 - bit % 8 - field.bits if field.bits < 8 else None
        layout = {"at": bit // 8, "size": size, "mask": mask}
        yield ", ".join(_entries(name=field.name, title=field.title, text=field.text, **layout))
        bit += field.bits


def _entries(**values: str | int | None) -> Iterable[str]:
    for name, value in values.items():
        if value is not None:
            yield f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}"
