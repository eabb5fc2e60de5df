# SPDX-License-Identifier: Apache-2.0
"""The stream of a rank: its messages, and those to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc.aio

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.base.limits import Bucket
from p4reduce_controller.base.sizes import TooLarge

FIRST_MESSAGE_TIMEOUT = 60.0  # seconds for Join or Rejoin
MESSAGES_PER_S = 20.0  # of one rank, which normally sends one every few seconds
MOST_UNREAD = 256  # messages beyond gRPC's own buffer; most only name the ranks that the job waits for

Context = grpc.aio.ServicerContext[pb.ClientMessage, pb.ServerMessage]


class ProtocolError(Exception):
    """An error: the client violates the protocol. The message for the client says how."""


class NotServing(Exception):
    """An error: another controller may serve now. The message is for the client, which tries again."""


class Unread(Exception):
    """An error: the client does not read its messages."""


@dataclass(eq=False, repr=False)
class Stream:
    """The stream of one rank. `serve` is its life. `tell` may be called at any time, and does not wait.

    `handle`: is given each message of the rank, with True as last argument for the first one. It may raise
    ProtocolError.
    `due`: returns how many seconds a message of so many bytes has to wait, because of earlier ones of its tenant.
    `first`: the first message, if it was read already.
    """

    context: Context
    handle: Callable[[Stream, pb.ClientMessage, bool], None]
    due: Callable[[int], float] = lambda _: 0.0
    first: pb.ClientMessage | None = None
    _outgoing: asyncio.Queue[tuple[pb.ServerMessage, bool] | BaseException] = field(default_factory=asyncio.Queue)
    _unread: asyncio.Event = field(default_factory=asyncio.Event)
    _over: bool = False

    def tell(self, message: pb.ServerMessage, *, last: bool = False) -> None:
        """Queue a message. The stream ends after it if it is the `last`, and at once if too many wait to be read."""
        if self._outgoing.qsize() < MOST_UNREAD:
            self._outgoing.put_nowait((message, last))
        else:
            self._unread.set()

    async def serve(self, lost: Callable[[Stream, str], None]) -> None:
        """Run the stream until its last message was sent, or the client is gone.

        `lost` is called when the rank sends nothing more, and again at the end; the text says why unless the connection
        has ended. Nothing is handled after that.

        Raises the errors of handling, reading and writing.
        """
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
        """Send the queued messages until the last one. Raise what `_read` has put into the queue."""
        while not isinstance(item := await self._outgoing.get(), BaseException):
            message, last = item
            await self.context.write(message)
            if last:
                return
        raise item

    async def _read(self, lost: Callable[[Stream, str], None]) -> None:
        """Read until the client sends no more, which before its Leave means that it is lost."""
        try:
            await self._handle_messages()
            if not self._over:
                lost(self, "")
        except (Exception, asyncio.CancelledError) as error:  # raised by `serve`, unless it was `serve` that cancelled
            self._outgoing.put_nowait(error)

    async def _handle_messages(self) -> None:
        try:
            message = self.first or await asyncio.wait_for(self.context.read(), FIRST_MESSAGE_TIMEOUT)
            first = True
            pace = Bucket(MESSAGES_PER_S, time.monotonic())
            # The wait for a message may return one although it was cancelled.
            while not self._over and (first or isinstance(message, pb.ClientMessage | TooLarge)):
                if wait := self.due(message.size if isinstance(message, TooLarge) else _size(message)):
                    await asyncio.sleep(wait)  # meanwhile gRPC's flow control stops the client
                    if self._over:
                        return
                if isinstance(message, TooLarge):
                    raise ProtocolError(str(message))
                self.handle(self, message if isinstance(message, pb.ClientMessage) else pb.ClientMessage(), first)
                first = False
                while wait := pace.take(time.monotonic()):  # flow control stops the client here too
                    await asyncio.sleep(wait)
                message = await self.context.read()
        except (ProtocolError, asyncio.TimeoutError) as error:
            text = str(error) or f"no Join came within {FIRST_MESSAGE_TIMEOUT:g} s"
            self.tell(pb.ServerMessage(abort=pb.Abort(reason=pb.JOIN_REFUSED, message=text)), last=True)


def _size(message: object) -> int:
    return message.ByteSize() if isinstance(message, pb.ClientMessage) else 0
