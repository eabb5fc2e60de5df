# SPDX-License-Identifier: Apache-2.0
"""Packet-out and packet-in: the header with the metadata, which P4Info describes, in front of the frame."""

from __future__ import annotations

from collections.abc import Sequence

from finsy.proto import p4r

from p4reduce_targets.p4runtime.bytestrings import decode, encode
from p4reduce_targets.p4runtime.errors import invalid
from p4reduce_targets.p4runtime.program import Field


class PacketHeader:
    """A header in front of the frames of the CPU port: the fields in order, without gaps."""

    def __init__(self, fields: Sequence[Field]) -> None:
        bits = sum(item.bits for item in fields)
        self.size = (bits + 7) // 8
        self._fields: dict[int, tuple[Field, int]] = {}
        shift = 8 * self.size
        for item in fields:
            shift -= item.bits
            self._fields[item.id] = (item, shift)

    def pack(self, packet: p4r.PacketOut) -> bytes:
        """Return header and payload; raise Refused for unknown metadata. Missing metadata is 0, as in BMv2."""
        header = 0
        for metadata in packet.metadata:
            if metadata.metadata_id not in self._fields:
                raise invalid(f"Unknown metadata id in PacketOut message: {metadata.metadata_id}")
            item, shift = self._fields[metadata.metadata_id]
            header |= decode(metadata.value, item.bits, f"packet-out metadata {item.name}") << shift
        return header.to_bytes(self.size, "big") + packet.payload

    def unpack(self, frame: bytes) -> p4r.PacketIn | None:
        """Return the packet-in, or None if the frame is shorter than the header."""
        if len(frame) < self.size:
            return None
        header = int.from_bytes(frame[: self.size], "big")
        packet = p4r.PacketIn(payload=frame[self.size :])
        for item, shift in self._fields.values():
            packet.metadata.add(metadata_id=item.id, value=encode(header >> shift & ((1 << item.bits) - 1)))
        return packet
