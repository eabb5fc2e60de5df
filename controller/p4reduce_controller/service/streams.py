# SPDX-License-Identifier: Apache-2.0
"""One rank's stream: what it says, and what it is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc.aio

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.base.limits import Bucket
from p4reduce_controller.base.sizes import TooLarge

FIRST_MESSAGE_TIMEOUT = 60.0
MESSAGES_PER_S = 20.0  # of one rank, which asks every few seconds, where it has reason to
MOST_UNREAD = 256  # beyond what gRPC takes in advance: whom the job waits for, and little else

Context = grpc.aio.ServicerContext[pb.ClientMessage, pb.ServerMessage]


class ProtocolError(Exception):
    """The client does not speak the service's language; the message says what it hears of that."""


class NotServing(Exception):
    """Another controller may serve now; the message is for the client, which asks again."""


class Unread(Exception):
    """The client does not read what it is told."""


@dataclass(eq=False, repr=False)
class Stream:
    """`serve` is its life. `tell` may be called at any time, and does not wait.

    `handle` is given what the rank says: its first message, for which its last argument is True, then the others. It
    may raise ProtocolError. `due`: the seconds until a message of so many bytes is, as others of its tenant have come
    before. `first`: the first message, where it was read already.
    """

    context: Context
    handle: Callable[[Stream, pb.ClientMessage, bool], None]
    due: Callable[[int], float] = lambda _: 0.0
    first: pb.ClientMessage | None = None
    _outgoing: asyncio.Queue[tuple[pb.ServerMessage, bool] | BaseException] = field(default_factory=asyncio.Queue)
    _unread: asyncio.Event = field(default_factory=asyncio.Event)
    _over: bool = False

    def tell(self, message: pb.ServerMessage, *, last: bool = False) -> None:
        """When `last`, the stream ends after it. That of a client which leaves too much unread ends at once."""
        if self._outgoing.qsize() < MOST_UNREAD:
            self._outgoing.put_nowait((message, last))
        else:
            self._unread.set()

    async def serve(self, lost: Callable[[Stream, str], None]) -> None:
        """Until the last word was sent, or the client is gone. `lost` is called when no more is heard of the rank, and
        in the end in any case, with the reason where that is not the connection's end; nothing is handled after that.
        Raises what goes wrong in handling, in reading and in writing."""
        reader = asyncio.create_task(self._read(lost), name="stream")
        writer = asyncio.create_task(self._write(), name="stream")
        unread = asyncio.create_task(self._unread.wait(), name="stream")
        why = ""
        try:
            await asyncio.wait([writer, unread], return_when=asyncio.FIRST_COMPLETED)
            if not writer.done():
                why = f"does not read the controller's messages: {MOST_UNREAD} wait"
                raise Unread(f"the client {why}")
            writer.result()
        finally:
            self._over = True
            for task in (reader, writer, unread):
                task.cancel()
            lost(self, why)
            await asyncio.gather(reader, writer, unread, return_exceptions=True)

    async def _write(self) -> None:
        while not isinstance(item := await self._outgoing.get(), BaseException):
            message, last = item
            await self.context.write(message)
            if last:
                return
        raise item

    async def _read(self, lost: Callable[[Stream, str], None]) -> None:
        """Until the client sends no more, which before its Leave means that it is lost."""
        try:
            await self._hear()
            if not self._over:
                lost(self, "")
        except (Exception, asyncio.CancelledError) as error:  # for `serve`, which may be the one who cancels
            self._outgoing.put_nowait(error)

    async def _hear(self) -> None:
        try:
            message = self.first or await asyncio.wait_for(self.context.read(), FIRST_MESSAGE_TIMEOUT)
            first = True
            pace = Bucket(MESSAGES_PER_S, time.monotonic())
            # A message may win against the cancellation of the wait for it.
            while not self._over and (first or isinstance(message, pb.ClientMessage | TooLarge)):
                if wait := self.due(message.size if isinstance(message, TooLarge) else _size(message)):
                    await asyncio.sleep(wait)  # and what it sends meanwhile stays with the client
                    if self._over:
                        return
                if isinstance(message, TooLarge):
                    raise ProtocolError(str(message))
                self.handle(self, message if isinstance(message, pb.ClientMessage) else pb.ClientMessage(), first)
                first = False
                while wait := pace.take(time.monotonic()):  # what it sends meanwhile stays with the client
                    await asyncio.sleep(wait)
                message = await self.context.read()
        except (ProtocolError, asyncio.TimeoutError) as error:
            text = str(error) or f"no Join came within {FIRST_MESSAGE_TIMEOUT:g} s"
            self.tell(pb.ServerMessage(abort=pb.Abort(reason=pb.JOIN_REFUSED, message=text)), last=True)


def _size(message: object) -> int:
    return message.ByteSize() if isinstance(message, pb.ClientMessage) else 0
