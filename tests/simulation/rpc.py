# SPDX-License-Identifier: Apache-2.0
"""gRPC in virtual time: channels and servers, of grpc.aio and for blocking clients, over the simulated network.

Messages are serialized as on a wire. There is one connection for each call, and no flow control.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import grpc.aio
from grpc import StatusCode

from tests.simulation import threads
from tests.simulation.network import CONNECT_TIMEOUT, RETRY, Listener, Network, Wire, host_of
from tests.simulation.world import Process

Trailing = tuple[tuple[str, str | bytes], ...]


class Call:
    """One remote procedure call between a client, which has `arrived`, `opened` and `ended`, and a server's handler."""

    def __init__(
        self, net: Network, client: Process, end: Any, address: str, method: str, metadata: Any, *, waits: bool
    ) -> None:
        self.net, self.client, self.end = net, client, end
        self.address, self.method, self.metadata = address, method, metadata
        self.host = host_of(address)
        self.keepalive = 60.0
        self.handler: Handler | None = None
        self._waits = waits
        self._up = Wire(net, client.host, self.host)
        self._down = Wire(net, self.host, client.host)
        self._server: Process | None = None
        self._sent_early: list[bytes | None] = []
        self._over = False
        net.calls[self] = None
        client.on_kill.append(self._client_died)
        if not waits:
            net.world.after(CONNECT_TIMEOUT, self._check_connected)
        self._try()

    # The client's calls.

    def send(self, message: bytes | None) -> None:
        """Send a message; None ends the client's stream."""
        if not self._over:
            self._up.send(lambda: self._arrive(message))

    def cancel(self) -> None:
        if not self._over:
            self._finish()
            self._up.send(self._drop_handler)

    # The server's calls.

    def reply(self, message: bytes) -> None:
        if not self._over:
            self._down.send(lambda: self._to_client("arrived", message))

    def end_with(self, code: StatusCode, details: str, trailing: Trailing = ()) -> None:
        self._down.send(lambda: self._end_client(code, details, trailing))

    def refused(self, why: str) -> None:
        self.end_with(StatusCode.UNAVAILABLE, why)

    # The network's.

    def broken(self, why: str) -> None:
        """Break the connection for both ends, each of which finds out by itself."""
        self._end_client(StatusCode.UNAVAILABLE, why, ())
        self._drop_handler()

    def _try(self) -> None:
        if not self._over:
            self._up.send(self._open)

    def _open(self) -> None:
        listener = self.net.listeners.get(self.address)
        if self._over:
            return
        if listener is None:
            if self._waits:
                self.net.world.after(RETRY, self._try)
            else:
                self.refused(f"Connection refused by {self.address}")
        elif listener.accept is None:
            listener.backlog.append(self)
        else:
            self.accepted(listener)

    def accepted(self, listener: Listener) -> None:
        assert listener.accept is not None
        self.keepalive = listener.keepalive
        self._server = listener.process
        self._server.on_kill.append(self._server_died)
        listener.accept(self)
        self._down.send(lambda: self._to_client("opened"))
        early, self._sent_early = self._sent_early, []
        for message in early:
            self._arrive(message)

    def _check_connected(self) -> None:
        if self._server is None and not self._over:
            self._end_client(StatusCode.UNAVAILABLE, "failed to connect: timed out", ())

    def _arrive(self, message: bytes | None) -> None:
        if self._server is None:
            self._sent_early.append(message)
        else:
            self._server.soon(self._to_handler, message)

    def _to_handler(self, message: bytes | None) -> None:
        if self.handler is not None:
            self.handler.arrived(message)

    def _to_client(self, what: str, *arguments: Any) -> None:
        if not self._over:
            self.client.soon(getattr(self.end, what), *arguments)

    def _end_client(self, code: StatusCode, details: str, trailing: Trailing) -> None:
        if not self._over:
            self._finish()
            self.client.soon(self.end.ended, code, details, trailing)

    def _drop_handler(self) -> None:
        if self._server is not None:
            self._server.soon(lambda: self.handler and self.handler.gone())

    def _client_died(self) -> None:
        if not self._over:
            self.cancel()

    def _server_died(self) -> None:
        if not self._over:
            self._down.send(lambda: self._end_client(StatusCode.UNAVAILABLE, "Connection reset by peer", ()))

    def _finish(self) -> None:
        self._over = True
        self.net.calls.pop(self, None)
        if self._client_died in self.client.on_kill:
            self.client.on_kill.remove(self._client_died)
        if self._server is not None and self._server_died in self._server.on_kill:
            self._server.on_kill.remove(self._server_died)


# Clients.


class _Multi:
    """A method of a service, as a client calls it."""

    def __init__(self, channel: Channel, kind: str, method: str, serialize: Any, parse: Any) -> None:
        self._channel, self._kind, self._method = channel, kind, method
        self._serialize, self._parse = serialize, parse

    def __call__(
        self, request: Any = None, timeout: float | None = None, metadata: Any = (), wait_for_ready: bool = False
    ) -> Any:
        made = self._channel.call_class(self._channel, self._kind, self._serialize, self._parse)
        made.begin(self._method, request, timeout, tuple(metadata or ()), waits=bool(wait_for_ready))
        self._channel.calls.append(made)
        return made


class Channel:
    """A channel. `call_class`: of its calls."""

    call_class: type[Any]

    def __init__(self, net: Network, address: str) -> None:
        self.net, self.address = net, address
        self.process = threads.here()
        self.calls: list[Any] = []

    def _make(self, kind: str, method: str, request_serializer: Any, response_deserializer: Any) -> _Multi:
        return _Multi(self, kind, method, request_serializer, response_deserializer)

    def unary_unary(self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        return self._make("unary_unary", method, request_serializer, response_deserializer)

    def unary_stream(self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        return self._make("unary_stream", method, request_serializer, response_deserializer)

    def stream_unary(self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        return self._make("stream_unary", method, request_serializer, response_deserializer)

    def stream_stream(self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        return self._make("stream_stream", method, request_serializer, response_deserializer)

    def cancel_all(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call.cancel()


class AioCall:
    """A call of grpc.aio."""

    def __init__(self, channel: Channel, kind: str, serialize: Any, parse: Any) -> None:
        self._channel, self._kind = channel, kind
        self._serialize, self._parse = serialize, parse
        self._loop = channel.process.loop
        self._messages: deque[bytes] = deque()
        self._waiters: list[asyncio.Future[None]] = []
        self._status: tuple[StatusCode, str, Trailing] | None = None
        self._opened = self._cancelled = self._done_writing = False
        self._timer: Any = None
        self._writer: asyncio.Task[None] | None = None

    def begin(self, method: str, request: Any, timeout: float | None, metadata: Any, *, waits: bool) -> None:
        channel = self._channel
        self._call = Call(channel.net, channel.process, self, channel.address, method, metadata, waits=waits)
        if timeout is not None:
            self._timer = self._loop.call_later(timeout, self._time_out)
        if self._kind.startswith("unary"):
            self._call.send(self._serialize(request))
            self._call.send(None)
        elif request is not None:
            self._writer = self._loop.create_task(self._write_all(request))

    async def _write_all(self, requests: Any) -> None:
        if hasattr(requests, "__aiter__"):
            async for request in requests:
                self._call.send(self._serialize(request))
        else:
            for request in requests:
                self._call.send(self._serialize(request))
        self._call.send(None)

    # From the network.

    def opened(self) -> None:
        self._opened = True
        self._wake()

    def arrived(self, message: bytes) -> None:
        self._messages.append(message)
        self._wake()

    def ended(self, code: StatusCode, details: str, trailing: Trailing) -> None:
        if self._status is None:
            self._status = code, details, trailing
            self._stop()

    # The methods of a call of grpc.aio.

    def cancel(self) -> bool:
        if self._status is not None:
            return False
        self._cancelled = True
        self._status = StatusCode.CANCELLED, "Locally cancelled by application!", ()
        self._call.cancel()
        self._stop()
        return True

    def cancelled(self) -> bool:
        return self._cancelled

    def done(self) -> bool:
        return self._status is not None

    async def read(self) -> Any:
        await self._until(lambda: bool(self._messages))
        if self._messages:
            return self._parse(self._messages.popleft())
        self._raise_for_status()
        return grpc.aio.EOF

    async def write(self, request: Any) -> None:
        if self.done() or self._done_writing:
            raise asyncio.InvalidStateError("the call is over")
        await self._until(lambda: self._opened)
        self._raise_for_status()
        self._call.send(self._serialize(request))

    async def done_writing(self) -> None:
        self._done_writing = True
        self._call.send(None)

    def __aiter__(self) -> Any:
        return self._each()

    async def _each(self) -> Any:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    def __await__(self) -> Any:
        return self._result().__await__()

    async def _result(self) -> Any:
        await self._until(lambda: False)
        self._raise_for_status()
        return self._parse(self._messages[0])

    async def code(self) -> StatusCode:
        await self._until(lambda: False)
        assert self._status is not None
        return self._status[0]

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds, or the call is over. Whoever cancels the wait cancels the call."""
        try:
            while not condition() and self._status is None:
                waiter = self._loop.create_future()
                self._waiters.append(waiter)
                await waiter
        except asyncio.CancelledError:
            self.cancel()
            raise

    def _raise_for_status(self) -> None:
        if self._cancelled:
            raise asyncio.CancelledError
        if self._status is not None and self._status[0] is not StatusCode.OK:
            code, details, trailing = self._status
            raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details)

    def _time_out(self) -> None:
        if self._status is None:
            self._status = StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", ()
            self._call.cancel()
            self._stop()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._writer is not None:
            self._writer.cancel()
        if self in self._channel.calls:
            self._channel.calls.remove(self)
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class AioChannel(Channel):
    """A channel of grpc.aio."""

    call_class = AioCall

    async def close(self, grace: float | None = None) -> None:
        del grace
        self.cancel_all()

    async def __aenter__(self) -> AioChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class SyncError(grpc.RpcError, grpc.Call):  # type: ignore[misc]
    """The error of a blocking call."""

    def __init__(self, code: StatusCode, details: str) -> None:
        super().__init__(code, details)
        self._code, self._details = code, details

    def code(self) -> StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def _unused(self, *_: Any) -> Any:
        raise NotImplementedError

    initial_metadata = trailing_metadata = is_active = time_remaining = cancel = add_callback = _unused


class SyncCall:
    """A stream of a blocking client, which a thread reads and another one writes."""

    def __init__(self, channel: Channel, kind: str, serialize: Any, parse: Any) -> None:
        assert kind == "stream_stream"
        self._channel, self._serialize, self._parse = channel, serialize, parse
        self._messages: deque[bytes] = deque()
        self._status: tuple[StatusCode, str] | None = None
        self._waiter: threads.Waiter | None = None

    def begin(self, method: str, request: Any, timeout: float | None, metadata: Any, *, waits: bool) -> None:
        assert timeout is None
        channel = self._channel
        self._call = Call(channel.net, channel.process, self, channel.address, method, metadata, waits=waits)
        threads.Thread(target=self._write, args=(request,), name=f"writes {method}").start()

    def _write(self, requests: Any) -> None:
        for request in requests:
            self._call.send(self._serialize(request))
        self._call.send(None)

    def opened(self) -> None: ...

    def arrived(self, message: bytes) -> None:
        self._messages.append(message)
        self._wake()

    def ended(self, code: StatusCode, details: str, _: Trailing) -> None:
        if self._status is None:
            self._status = code, details
            if self in self._channel.calls:
                self._channel.calls.remove(self)
            self._wake()

    def cancel(self) -> None:
        if self._status is None:
            self._call.cancel()
            self.ended(StatusCode.CANCELLED, "Locally cancelled by application!", ())

    def __iter__(self) -> SyncCall:
        return self

    def __next__(self) -> Any:
        while not self._messages:
            if self._status is not None:
                if self._status[0] is StatusCode.OK:
                    raise StopIteration
                raise SyncError(*self._status)
            self._waiter = threads.Waiter()
            self._waiter.wait()
        return self._parse(self._messages.popleft())

    def _wake(self) -> None:
        if self._waiter is not None:
            self._waiter.wake()


class SyncChannel(Channel):
    """A channel of a blocking client."""

    call_class = SyncCall

    def close(self) -> None:
        self.cancel_all()


# Servers.


class _Details:
    """The method and the metadata of a call, for interceptors."""

    def __init__(self, method: str, metadata: Any) -> None:
        self.method, self.invocation_metadata = method, metadata


class Handler:
    """The server's end of a call, which is also the context that its handler gets."""

    def __init__(self, server: Server, call: Call) -> None:
        self._server, self._call = server, call
        self._loop = server.process.loop
        self._messages: deque[bytes | None] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._parse: Any = None
        self._serialize: Any = None
        self._code, self._text, self._trailing = StatusCode.OK, "", ()
        self.over = False
        self.task = self._loop.create_task(self._serve())

    def arrived(self, message: bytes | None) -> None:
        self._messages.append(message)
        self._wake()

    def gone(self) -> None:
        """Handle that the client is gone: its handler is cancelled."""
        if not self.over:
            self.over = True
            self.task.cancel()

    def shut(self) -> None:
        """End the call, since the server ends."""
        if not self.over:
            self.over = True
            self._call.end_with(StatusCode.UNAVAILABLE, "Socket closed")
            self.task.cancel()

    async def _serve(self) -> None:
        try:
            await self._handle()
        except grpc.aio.AbortError:
            pass
        except asyncio.CancelledError:
            if not self.over:
                self._code, self._text = StatusCode.CANCELLED, "cancelled by the server"
        except Exception as error:
            if not self.over:
                self._server.process.world.note(self._server.process.name, f"{self._call.method} failed: {error!r}")
            self._code, self._text = StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}"
        finally:
            if not self.over:
                self.over = True
                self._call.end_with(self._code, self._text, self._trailing)
            self._server.handlers.pop(self, None)

    async def _handle(self) -> None:
        details = _Details(self._call.method, self._call.metadata)
        handler = await self._server.find(details)
        if handler is None:
            await self.abort(StatusCode.UNIMPLEMENTED, "Method not found!")
        self._parse, self._serialize = handler.request_deserializer, handler.response_serializer
        if handler.request_streaming:
            await handler.stream_stream(None, self)
            return
        request = await self.read()
        if handler.response_streaming:
            async for reply in handler.unary_stream(request, self):
                await self.write(reply)
        else:
            await self.write(await handler.unary_unary(request, self))

    # The methods of grpc.aio.ServicerContext.

    async def read(self) -> Any:
        while not self._messages:
            self._waiter = self._loop.create_future()
            await self._waiter
        if (message := self._messages[0]) is None:
            return grpc.aio.EOF
        self._messages.popleft()
        return self._parse(message) if self._parse is not None else message

    async def write(self, message: Any) -> None:
        self._call.reply(self._serialize(message) if self._serialize is not None else message)

    async def abort(self, code: StatusCode, details: str = "", trailing_metadata: Trailing = ()) -> Any:
        self._code, self._text, self._trailing = code, details, tuple(trailing_metadata) or self._trailing
        raise grpc.aio.AbortError("the handler has aborted the call")

    def set_trailing_metadata(self, trailing: Trailing) -> None:
        self._trailing = tuple(trailing)

    def peer(self) -> str:
        return f"ipv4:{self._call.client.host}:40000"

    def invocation_metadata(self) -> Any:
        return self._call.metadata

    def code(self) -> StatusCode:
        return self._code

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Server:
    """A server of grpc.aio."""

    def __init__(self, net: Network, interceptors: Sequence[Any] = (), keepalive: float = 60.0) -> None:
        self.net = net
        self.process = threads.here()
        self.handlers: dict[Handler, None] = {}
        self._interceptors = tuple(interceptors)
        self._services: list[Any] = []
        self._keepalive = keepalive
        self._address = ""
        self._listener: Listener | None = None

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        self._services += handlers

    def add_registered_method_handlers(self, *_: Any) -> None: ...

    def add_insecure_port(self, address: str) -> int:
        self._listener = self.net.listen(address, self.process, self._keepalive)
        self._address = address
        return int(address.rpartition(":")[2])

    async def start(self) -> None:
        self.begin()

    def begin(self) -> None:
        assert self._listener is not None
        self._listener.accept = self._accept
        backlog, self._listener.backlog = self._listener.backlog, []
        for call in backlog:
            call.accepted(self._listener)

    def _accept(self, call: Call) -> None:
        self.process.soon(self._begin, call)

    def _begin(self, call: Call) -> None:
        call.handler = Handler(self, call)
        self.handlers[call.handler] = None

    async def find(self, details: _Details) -> Any:
        async def last(_: Any) -> Any:
            found = (one.service(details) for one in self._services)
            return next((handler for handler in found if handler is not None), None)

        chain = last
        for interceptor in reversed(self._interceptors):

            async def chain(details: Any, interceptor: Any = interceptor, after: Any = chain) -> Any:
                return await interceptor.intercept_service(after, details)

        return await chain(details)

    async def stop(self, grace: float | None = None) -> None:
        if self._listener is not None:
            self.net.close(self._address, self._listener)
            self._listener = None
        running = [handler.task for handler in self.handlers]
        if grace and running:
            await asyncio.wait(running, timeout=grace)
        left = list(self.handlers)
        for handler in left:
            handler.shut()
        if left:
            await asyncio.gather(*[handler.task for handler in left], return_exceptions=True)
