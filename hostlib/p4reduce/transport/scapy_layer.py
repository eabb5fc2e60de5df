# SPDX-License-Identifier: Apache-2.0
"""The aggregation packet as a scapy layer. If this module is imported, scapy dissects UDP port 0x7A52.

    from scapy.all import rdpcap
    from p4reduce.transport.scapy_layer import P4Reduce
    rdpcap("trace.pcap")[0][P4Reduce].show()

A datagram may have several packets, because the kernel may send and receive several as one. Each is the payload of the
one before it. A packet does not say how many lanes its pipeline has, nor how large their blocks are. If these are not
the defaults, set `P4Reduce.lanes` and `P4Reduce.block_size` first.
"""

from __future__ import annotations

from typing import ClassVar

from scapy.fields import (
    AnyField,
    BitEnumField,
    BitField,
    ConditionalField,
    FieldListField,
    FlagsField,
    SignedIntField,
    XBitField,
    XIntField,
)
from scapy.layers.inet import UDP
from scapy.packet import Packet, bind_layers

from p4reduce.protocol import constants
from p4reduce.protocol.header import FIELDS, FIXED, Field

LANE_NAMES = [f"lane{lane}" for lane in range(8)]
OPS = {op.value: op.name for op in constants.Op}


def _field(field: Field) -> AnyField:
    """Return the scapy field for a field of the header."""
    if field.name == "op":
        return BitEnumField(field.name, constants.Op.DATA.value, field.bits, OPS)
    if field.name in ("active", "present"):
        return FlagsField(field.name, 0, field.bits, LANE_NAMES)
    if field.name in ("worker", "fingerprint"):
        return XBitField(field.name, 0, field.bits)
    return BitField(field.name, constants.PROTOCOL_VERSION if field.name == "version" else 0, field.bits)


class Values(FieldListField):
    """The values, as far as they were captured. An incomplete value at the end is left to the payload."""

    def getfield(self, pkt: Packet, s: bytes) -> tuple[bytes, list[int]]:
        whole = len(s) // 4 * 4
        rest, values = super().getfield(pkt, s[:whole])
        return rest + s[whole:], values


class P4Reduce(Packet):
    """One packet: header, one key for each lane, and the values of the lanes in `present`, lane 0 first."""

    lanes: ClassVar[int] = constants.DEFAULT_LANES
    block_size: ClassVar[int] = constants.DEFAULT_BLOCK_SIZE

    name = "p4reduce"
    fields_desc = [  # noqa: RUF012
        *(_field(field) for field in FIELDS),
        FieldListField("keys", None, XIntField("key", constants.NO_KEY), count_from=lambda packet: packet.lanes),
        ConditionalField(
            Values(
                "values",
                [],
                SignedIntField("value", 0),
                count_from=lambda packet: int(packet.present).bit_count() * packet.block_size,
                max_count=len(LANE_NAMES) * max(constants.BLOCK_SIZES_ACCEPTED),
            ),
            lambda packet: int(packet.present) != 0,
        ),
    ]

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """Return P4Reduce if the payload begins with the protocol's version and an op, otherwise scapy's guess."""
        size = FIXED.size + 4 * self.lanes
        begins = len(payload) >= size and payload[0] >> 4 == constants.PROTOCOL_VERSION and payload[0] & 15 in OPS
        return P4Reduce if begins else Packet.guess_payload_class(self, payload)


bind_layers(UDP, P4Reduce, dport=constants.AGGREGATION_PORT)
bind_layers(UDP, P4Reduce, sport=constants.AGGREGATION_PORT)
