# SPDX-License-Identifier: Apache-2.0
"""The aggregation packet as a scapy layer: importing this module teaches scapy to dissect port 0x7A52.

    from scapy.all import rdpcap
    from p4reduce.transport.scapy_layer import P4Reduce
    rdpcap("trace.pcap")[0][P4Reduce].show()

A packet does not say how many lanes its pipeline has, nor how large their blocks are. Where that is not the default,
set `P4Reduce.lanes` and `P4Reduce.block_size` first.
"""

from __future__ import annotations

from typing import ClassVar

from scapy.fields import (
    BitEnumField,
    BitField,
    ConditionalField,
    FieldListField,
    FlagsField,
    IntField,
    ShortField,
    SignedIntField,
    XByteField,
    XIntField,
)
from scapy.layers.inet import UDP
from scapy.packet import Packet, bind_layers

from p4reduce.protocol import constants

LANE_NAMES = [f"lane{lane}" for lane in range(8)]
OPS = {op.value: op.name for op in constants.Op}


class P4Reduce(Packet):
    """Header, one key a lane, and the values of the lanes in `present`, lane 0 first."""

    lanes: ClassVar[int] = constants.DEFAULT_LANES
    block_size: ClassVar[int] = constants.DEFAULT_BLOCK_SIZE

    name = "p4reduce"
    fields_desc = [  # noqa: RUF012
        BitField("version", constants.PROTOCOL_VERSION, 4),
        BitEnumField("op", constants.Op.DATA.value, 4, OPS),
        FlagsField("active", 0, 8, LANE_NAMES),
        FlagsField("present", 0, 8, LANE_NAMES),
        XByteField("worker", 0),
        ShortField("job", 0),
        ShortField("generation", 0),
        ShortField("slot", 0),
        IntField("seq", 0),
        XIntField("fingerprint", 0),
        FieldListField("keys", None, XIntField("key", constants.NO_KEY), count_from=lambda packet: packet.lanes),
        ConditionalField(
            FieldListField(
                "values",
                [],
                SignedIntField("value", 0),
                count_from=lambda packet: packet.value_count(),
                max_count=len(LANE_NAMES) * max(constants.BLOCK_SIZES_ACCEPTED),
            ),
            lambda packet: int(packet.present) != 0,
        ),
    ]

    def value_count(self) -> int:
        """How many 32-bit values the lanes in `present` carry."""
        return int(self.present).bit_count() * self.block_size


bind_layers(UDP, P4Reduce, dport=constants.AGGREGATION_PORT)
bind_layers(UDP, P4Reduce, sport=constants.AGGREGATION_PORT)
