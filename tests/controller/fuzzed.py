# SPDX-License-Identifier: Apache-2.0
"""Inputs of a fuzzer: messages and frames with values that are likely to matter, and the same with changed bytes."""

from __future__ import annotations

import asyncio
import random
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from p4reduce.control import jobs_pb2 as pb
from p4reduce.protocol.packet import Packet
from p4reduce_controller.switches.frames import Endpoint, build

_M = TypeVar("_M", bound=Message)
_F = FieldDescriptor
_BITS = {
    **dict.fromkeys((_F.TYPE_UINT32, _F.TYPE_FIXED32), (0, 32)),
    **dict.fromkeys((_F.TYPE_UINT64, _F.TYPE_FIXED64), (0, 64)),
    **dict.fromkeys((_F.TYPE_INT32, _F.TYPE_SINT32), (1, 32)),
    **dict.fromkeys((_F.TYPE_INT64, _F.TYPE_SINT64), (1, 64)),
}
_DOUBLES = (0.0, 0.5, 1.0, 0.3, -1.0, 3600.0, 1e9, 1e308, float("inf"), float("-inf"), float("nan"), 5e-324)
_TEXTS = ("", "a", "job", "fake", "fake 1", "x" * 300, "\0", "é\n", "☃" * 64, "../..", "{", '{"switch": 1}', "%s{0}")
_JSONS = (
    '{"switch": "127.0.0.1:1", "address": "10.0.0.1"}',
    '{"name": "fake 9", "switch": "127.0.0.1:2", "address": "10.0.0.2", "uplink": {"port": 1, "to": "fake"}}',
    '{"name": "fake 8", "switch": "127.0.0.1:3", "address": "fd00::2", "uplink": {"port": 1, "to": "fake"}}',
    "[" * 5000,
    "null",
)


class Ended(Exception):
    """The call was ended by the service."""

    def __init__(self, code: grpc.StatusCode, why: str) -> None:
        super().__init__(why)
        assert isinstance(code, grpc.StatusCode)
        assert isinstance(why, str)
        self.code = code


class FakeContext:
    """A fake of gRPC's context of one call. The fuzzer learns from messages that the controller writes to it."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._said: asyncio.Queue[Any] = asyncio.Queue()

    def put(self, message: object) -> None:
        self._said.put_nowait(message)

    async def read(self) -> Any:
        return await self._said.get()

    async def write(self, message: pb.ServerMessage) -> None:
        message.SerializeToString()
        self._words.learn(message)

    async def abort(self, code: grpc.StatusCode, why: str) -> NoReturn:
        raise Ended(code, why)

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def code(self) -> None:
        return None


class Words:
    def __init__(self, rng: random.Random) -> None:
        self.random = rng
        self.assigned: list[pb.Assigned] = []

    def learn(self, message: pb.ServerMessage) -> None:
        if message.WhichOneof("message") == "assigned":
            self.assigned = [*self.assigned[-32:], message.assigned]

    def first(self) -> pb.ClientMessage:
        """Return the first message of a stream, mostly a Join that can be answered."""
        choice = self.random.random()
        if choice < 0.6:
            size = self.random.choice([1, 1, 2, 2, 3, 4])
            join = pb.Join(
                job=f"job{self.random.randrange(4)}",
                rank=self.random.randrange(size),
                world_size=size,
                slots=self.random.choice([0, 1, 2, 4, 16]),
                host=self.random.choice(["", "", "h"]),
                stream=self.random.choice([0, 1, 2]),  # type: ignore[arg-type]
                threads=self.random.choice([0, 0, 1, 2]),
                queue_s=self.random.choice([0.0, 0.0, 0.5]),
                timeout_s=self.random.choice([0.0, 0.5]),
            )
            return pb.ClientMessage(join=join)
        if choice < 0.8:
            return pb.ClientMessage(join=self.message(pb.Join))
        if choice < 0.9 and self.assigned:
            one = self.random.choice(self.assigned)
            key = self.random.choice([one.rejoin_key, ""])
            return pb.ClientMessage(rejoin=pb.Rejoin(job=one.job, generation=one.generation, rank=one.worker, key=key))
        return self.message(pb.ClientMessage)

    def later(self) -> pb.ClientMessage:
        if self.random.random() < 0.3:
            return pb.ClientMessage(leave=pb.Leave())
        if self.random.random() < 0.3:
            return pb.ClientMessage(unanswered=pb.Unanswered(half=self.random.randrange(8)))
        return self.message(pb.ClientMessage)

    def message(self, kind: type[_M], depth: int = 0) -> _M:
        """Return a message of this kind with some of its fields, of any value."""
        made = kind()
        oneofs = {self.random.choice(list(one.fields)).name for one in kind.DESCRIPTOR.oneofs}
        for field in kind.DESCRIPTOR.fields:
            if field.containing_oneof is not None and field.name not in oneofs:
                continue
            if self.random.random() < 0.3 and field.containing_oneof is None:
                continue
            if field.message_type is not None:
                if depth < 3 and not field.is_repeated:
                    inner = self.message(field.message_type._concrete_class, depth + 1)
                    getattr(made, field.name).CopyFrom(inner)
            elif field.is_repeated:
                getattr(made, field.name).extend(self._value(field) for _ in range(self.random.choice([0, 1, 3, 40])))
            else:
                setattr(made, field.name, self._value(field))
        return made

    def _value(self, field: FieldDescriptor) -> Any:
        if field.type in _BITS:
            signed, bits = _BITS[field.type]
            most = (1 << (bits - signed)) - 1
            known = [one.job for one in self.assigned] + [one.generation for one in self.assigned]
            any_number = self.random.getrandbits(self.random.randrange(1, bits - signed + 1))
            return self.random.choice([0, 1, 2, 3, most, any_number, *([self.random.choice(known)] if known else [])])
        if field.type in (_F.TYPE_DOUBLE, _F.TYPE_FLOAT):
            return self.random.choice(_DOUBLES)
        if field.type == _F.TYPE_STRING:
            return self.random.choice((*_TEXTS, *_JSONS, *(f"job{number}" for number in range(4))))
        if field.type == _F.TYPE_BYTES:
            return self.random.randbytes(self.random.randrange(40))
        if field.type == _F.TYPE_BOOL:
            return self.random.random() < 0.5
        assert field.enum_type is not None, field.name
        return self.random.choice([*field.enum_type.values_by_number, 77])

    def frame(self) -> bytes:
        """Return a frame of the protocol, from any sender and to any receiver."""
        bits = self.random.getrandbits
        words = self.random.choice([0, 1, 4, 4, 4, 260])
        packet = Packet(
            self.random.randrange(16),
            *(self.random.choice([0, 1, bits(size)]) for size in (16, 16, 8, 16, 32, 32, 8, 8)),
            keys=tuple(bits(32) for _ in range(words)),
        )
        mac = self.random.choice(["02:00:7f:00:00:01", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00", "02:00:00:00:00:09"])
        ips = ["127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "10.0.0.9"]
        ip = self.random.choice([*ips, "::1", "::", "ff02::1", "fe80::1", "::ffff:10.0.0.9", "fd00::9"])
        sender = Endpoint(mac, ip, self.random.choice([0, 31314, 40000, 65535]))
        return build(packet, sender, Endpoint(mac, ip, self.random.choice([31314, 31314, 31314, 1])))

    def spoiled(self, frame: bytes) -> bytes:
        """Return the frame with a few bytes changed, lost or doubled."""
        changed = bytearray(frame)
        for _ in range(self.random.choice([1, 1, 2, 8])):
            at = self.random.randrange(len(changed) + 1)
            what = self.random.random()
            if what < 0.6 and at < len(changed):
                changed[at] ^= 1 << self.random.randrange(8)
            elif what < 0.8:
                del changed[at:]
            else:
                changed[at:at] = self.random.randbytes(self.random.choice([1, 4, 300]))
        return bytes(changed)


def mutated(rng: random.Random, message: _M, kind: type[_M]) -> _M | None:
    """Return the message as it arrives, sometimes with changed bytes, or None if these are not a message any more."""
    wire = message.SerializeToString()
    if rng.random() < 0.2:
        wire = Words(rng).spoiled(wire)
    try:
        return kind.FromString(wire)
    except DecodeError:
        return None
