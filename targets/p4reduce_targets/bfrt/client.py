# SPDX-License-Identifier: Apache-2.0
"""A client of BF Runtime, the gRPC server in `bf_switchd`.

A client subscribes under a number of its own, which is the stream's for as long as the stream lasts. It binds to the
program; a program has one bound client at a time. The server gives each client one session, so calls of one client must
not overlap; this client lets one thread call at a time.

A connection ends for good when its stream ends or a call gets no answer: then nobody knows which writes were done. A
new client must begin again, with an empty switch.
"""

from __future__ import annotations

import queue
import random
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError

from p4reduce.control.channel import code_of, details
from p4reduce.control.diagnostics import of_grpc
from p4reduce.control.grpc_channels import open_grpc_channel
from p4reduce_targets.bfrt import bfruntime_pb2 as pb
from p4reduce_targets.dataplane import DataPlaneLost

ALL_PIPES, BOTH_DIRECTIONS, ALL_PARSERS = 0xFFFF, 0xFF, 0xFF
NO_PROGRAM = "$SHARED"  # the name under which a switch without a program lists the tables that every switch has

_SERVICE = "/bfrt_proto.BfRuntime/"
_INSTALL_TIMEOUT_S = 120.0  # the server resets the chip meanwhile
_WAKE_S = 0.2  # between checks whether the connection is lost
_END_TIMEOUT_S = 1.0  # for the server to notice that this client goes
_MOST_PER_CALL = 1024  # updates or entries in one call, so that its deadline leaves the server about 10 ms for each
# The server keeps 24 bits of a client's number where it needs to find the client again. Number 0 is that of every
# stream that ends before it subscribed: the server would then remove client 0.
_CLIENT_IDS = range(1, 1 << 24)
_ID_ATTEMPTS = 16  # numbers to try until one is free
_OPTIONS = (
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", -1),  # a program with its context.json has many megabytes
    ("grpc.max_metadata_size", 16 << 20),  # errors of a batch come in the trailing metadata, a hundred bytes each
    ("grpc.absolute_max_metadata_size", 16 << 20),
)
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
_DETAILS = "grpc-status-details-bin"

_Reply = TypeVar("_Reply")


class BfrtError(RuntimeError):
    """A refusal by the BF Runtime server; the message names the server and has its words."""


class BfrtLost(BfrtError, DataPlaneLost):
    """The connection has ended. Which of the last writes were done is unknown, and the client is of no more use."""


class BindRefused(BfrtError):
    """Another client is bound to the program. `holder`: its client number, if the server says it."""

    def __init__(self, message: str, holder: int | None) -> None:
        super().__init__(message)
        self.holder = holder


@dataclass(frozen=True, slots=True)
class UpdateError:
    """The server's error for one update or entry of a call."""

    code: grpc.StatusCode
    message: str

    def __str__(self) -> str:
        return f"{self.message} ({self.code.name})"


class ReadRefused(BfrtError):
    """Entries could not be read. `errors` has one element for each entry of the call, in order: None if it was read."""

    def __init__(self, message: str, errors: Sequence[UpdateError | None]) -> None:
        super().__init__(message)
        self.errors = tuple(errors)


class Client:
    """A subscribed client. Its methods can be called from any thread.

    All raise BfrtLost once the connection has ended, and BfrtError if the server refuses the call as a whole.
    """

    def __init__(
        self,
        address: str,
        *,
        device_id: int = 0,
        timeout_s: float = 10.0,
        ended: threading.Event | None = None,
    ) -> None:
        """Connect and subscribe. Raises BfrtLost without an answer in `timeout_s`, and BfrtError.

        `timeout_s`: deadline of every call, in seconds. `ended`: when it is set, the client closes, also during a call
        and in this constructor.
        """
        self.address = address
        self.device_id = device_id
        self._timeout_s = timeout_s
        self._lost: str | None = None
        self._state = threading.Lock()  # of _lost, _installing
        self._calling = threading.Lock()  # held during a call
        self._closing = threading.Lock()  # held by `close`, so that a second caller returns when the first does
        self._installing = False
        self._installed = threading.Event()
        self._stream: _Stream | None = None
        self._channel = open_grpc_channel(address, options=_OPTIONS)
        if ended is not None:
            threading.Thread(target=self._close_when, args=(ended,), name="bfrt-end", daemon=True).start()
        try:
            self.client_id = self._subscribe()
            self._check()
        except BaseException:
            self.close()
            raise

    def __str__(self) -> str:
        return f"BF Runtime server at {self.address}"

    @property
    def lost(self) -> str | None:
        """The reason why the connection has ended; None while it lasts."""
        return self._lost

    def running(self) -> pb.GetForwardingPipelineConfigResponse:
        """Return the programs that the switch runs, none or one, and the schema of the tables that every switch has."""
        request = pb.GetForwardingPipelineConfigRequest(device_id=self.device_id, client_id=self.client_id)
        with self._calling:
            answer = self._call("GetForwardingPipelineConfig", request, pb.GetForwardingPipelineConfigResponse)[0]
        for at in reversed(range(len(answer.config))):
            if answer.config[at].p4_name == NO_PROGRAM:
                del answer.config[at]
        return answer

    def install(self, config: pb.ForwardingPipelineConfig) -> None:
        """Replace the switch's program, and with it all ports and entries. Takes seconds, up to two minutes.

        The server saves the program's files in a folder of the program's name, in its working directory.
        """
        actions = pb.SetForwardingPipelineConfigRequest
        request = actions(
            device_id=self.device_id,
            client_id=self.client_id,
            action=actions.VERIFY_AND_WARM_INIT_BEGIN_AND_END,
            config=[config],
        )
        with self._calling:
            with self._state:
                self._installing = True
            self._installed.clear()
            try:
                reply = pb.SetForwardingPipelineConfigResponse
                self._call("SetForwardingPipelineConfig", request, reply, _INSTALL_TIMEOUT_S)
                # The server writes the end of the installation to every stream before it answers.
                if not self._installed.wait(self._timeout_s):
                    raise self.lose(f"the {self} did not report the end of the installation")
            finally:
                with self._state:
                    self._installing = False

    def bind(self, p4_name: str) -> None:
        """Become the client of the running program, for writes and reads. Raises BindRefused if another one is it."""
        request = pb.SetForwardingPipelineConfigRequest(
            device_id=self.device_id,
            client_id=self.client_id,
            action=pb.SetForwardingPipelineConfigRequest.BIND,
            config=[pb.ForwardingPipelineConfig(p4_name=p4_name)],
        )
        with self._calling:
            try:
                self._call("SetForwardingPipelineConfig", request, pb.SetForwardingPipelineConfigResponse)
            except _Refusal as error:
                if error.code is not grpc.StatusCode.ALREADY_EXISTS:
                    raise
                found = re.search(r"Client ID (-?\d+) already owns", error.said)
                holder = int(found[1]) % (1 << 32) if found else None
                raise BindRefused(
                    f"client {'of unknown number' if holder is None else holder} of the {self} is bound to {p4_name}, "
                    "and a program has one client: end that program",
                    holder,
                ) from None

    def write(self, updates: Sequence[pb.Update], timeout_s: float | None = None) -> list[UpdateError | None]:
        """Do all updates in order, going on after refused ones. Returns what became of each: None if it was done.

        `timeout_s`: in seconds, in place of the client's.
        """
        results: list[UpdateError | None] = []
        with self._calling:
            for start in range(0, len(updates), _MOST_PER_CALL):
                results += self._write(updates[start : start + _MOST_PER_CALL], timeout_s)
        return results

    def read(self, entries: Sequence[pb.TableEntry]) -> list[pb.TableEntry]:
        """Return what the switch has of these: one entry for each with a key, in order, and all for one without a key.

        Raises ReadRefused if one of them cannot be read, for example as there is no such entry.
        """
        found: list[pb.TableEntry] = []
        errors: list[UpdateError | None] = []
        with self._calling:
            for start in range(0, len(entries), _MOST_PER_CALL):
                chunk = entries[start : start + _MOST_PER_CALL]
                request = pb.ReadRequest(
                    target=self._target(),
                    client_id=self.client_id,
                    entities=[pb.Entity(table_entry=entry) for entry in chunk],
                )
                try:
                    answers = self._call("Read", request, pb.ReadResponse, stream=True)
                except _Refusal as error:
                    errors += error.results(len(chunk))
                    continue
                errors += [None] * len(chunk)
                found += [entity.table_entry for answer in answers for entity in answer.entities]
        refused = [error for error in errors if error is not None]
        if refused:
            raise ReadRefused(f"{self}: {len(refused)} of {len(entries)} entries: {refused[0]}", errors)
        return found

    def close(self) -> None:
        """Unsubscribe, so that another client can bind, and end calls of other threads."""
        with self._closing:
            with self._state:
                ends = self._lost is None
                if ends:
                    self._lost = f"the connection to the {self} was closed"
            if ends and self._stream is not None:
                self._stream.end(_END_TIMEOUT_S)
            self._channel.close()

    def _close_when(self, ended: threading.Event) -> None:
        while self._lost is None:
            if ended.wait(_WAKE_S):
                self.close()

    def _write(self, updates: Sequence[pb.Update], timeout_s: float | None) -> list[UpdateError | None]:
        request = pb.WriteRequest(
            target=self._target(),
            client_id=self.client_id,
            updates=updates,
            atomicity=pb.WriteRequest.CONTINUE_ON_ERROR,
        )
        try:
            self._call("Write", request, pb.WriteResponse, timeout_s)
        except _Refusal as error:
            return error.results(len(updates))
        return [None] * len(updates)

    def _target(self) -> pb.TargetDevice:
        return pb.TargetDevice(
            device_id=self.device_id, pipe_id=ALL_PIPES, direction=BOTH_DIRECTIONS, prsr_id=ALL_PARSERS
        )

    def _call(
        self,
        method: str,
        request: Any,
        reply: type[_Reply],
        timeout_s: float | None = None,
        *,
        stream: bool = False,
    ) -> list[_Reply]:
        """Return the replies: one, or with `stream` all that come. Raises BfrtLost, _Refusal."""
        self._check()
        make = self._channel.unary_stream if stream else self._channel.unary_unary
        call = make(
            _SERVICE + method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,  # type: ignore[attr-defined]
        )
        try:
            answer: Any = call(request, timeout=timeout_s or self._timeout_s)
            return list(answer) if stream else [answer]
        except grpc.RpcError as error:
            code = code_of(error) or grpc.StatusCode.UNKNOWN
            if code in _LOST:
                raise self.lose(f"{self}: {method}: {of_grpc(details(error), code.name)}") from None
            raise _Refusal(self, method, code, details(error), _details_of(error)) from None
        except ValueError:  # gRPC's, for a channel that another thread has closed
            self._check()
            raise

    def _check(self) -> None:
        if self._lost is not None:
            raise BfrtLost(self._lost)

    def lose(self, why: str) -> BfrtLost:
        """End the connection with all calls, unless it has ended already. Returns the error to raise."""
        with self._state:
            first = self._lost is None
            if first:
                self._lost = why
            error = BfrtLost(self._lost or why)
        if first:
            if self._stream is not None:
                self._stream.cancel()
            self._channel.close()
        return error

    def _subscribe(self) -> int:
        """Open the stream under a number that is free, and return that number."""
        for client_id in random.SystemRandom().sample(_CLIENT_IDS, _ID_ATTEMPTS):
            try:
                self._stream = stream = _Stream(
                    self._channel, client_id, self.device_id, self._on_message, self._on_end
                )
            except ValueError:  # gRPC's, for a channel that another thread has closed
                self._check()
                raise
            if not stream.answered.wait(self._timeout_s):
                why = (
                    f"{self}: no answer in {self._timeout_s:g} s; check that bf_switchd runs there, and is not stopped"
                )
                raise self.lose(why)
            error = stream.error
            if error is None:
                return client_id
            code = code_of(error)
            if code is not grpc.StatusCode.INVALID_ARGUMENT:
                said = of_grpc(details(error), code.name if code else "")
                raise self.lose(f"{self}: {said}; check that bf_switchd runs there with its BF Runtime server")
        raise self.lose(f"{self}: {_ID_ATTEMPTS} random client numbers are all taken; restart bf_switchd")

    def _on_message(self, message: pb.StreamMessageResponse) -> None:
        if message.WhichOneof("update") != "set_forwarding_pipeline_config_response":
            return
        with self._state:
            ours = self._installing
        if not ours:  # all entries are gone, although the server keeps this client bound if the name is the same
            self.lose(f"another client of the {self} has installed a program")
            return
        kind = message.set_forwarding_pipeline_config_response.set_forwarding_pipeline_config_response_type
        if kind == pb.WARM_INIT_FINISHED:
            self._installed.set()

    def _on_end(self, error: grpc.RpcError | None) -> None:
        """End the connection: the stream has ended, because the server has, or removed this client with its program."""
        code = code_of(error) if error is not None else None
        said = of_grpc(details(error), code.name if code else "") if error is not None else "it ended the connection"
        self.lose(f"{self}: {said}")


class _Refusal(BfrtError):
    """A call that the server refused."""

    def __init__(
        self,
        client: Client,
        method: str,
        code: grpc.StatusCode,
        said: str,
        errors: list[UpdateError | None],
    ) -> None:
        super().__init__(f"{client}: {method}: {said} ({code.name})")
        self._client = client
        self.code = code
        self.said = said
        self._errors = errors

    def results(self, number: int) -> list[UpdateError | None]:
        """Return the errors of a call with so many updates or entries.

        The server's list ends with the last error: what came after it was done. Raises BfrtLost, and ends the
        connection, if there is no such list, since nobody knows what was done.
        """
        if not 0 < len(self._errors) <= number:
            raise self._client.lose(str(self)) from None
        return [*self._errors, *[None] * (number - len(self._errors))]


class _Stream:
    """The stream of a client. `answered` is set when the subscription is; `error` is then why it was refused."""

    def __init__(
        self,
        channel: grpc.Channel,
        client_id: int,
        device_id: int,
        on_message: Callable[[pb.StreamMessageResponse], None],
        on_end: Callable[[grpc.RpcError | None], None],
    ) -> None:
        self.answered = threading.Event()
        self.error: grpc.RpcError | None = None
        self._on_message, self._on_end = on_message, on_end
        self._requests: queue.SimpleQueue[pb.StreamMessageRequest | None] = queue.SimpleQueue()
        subscribe = pb.Subscribe(device_id=device_id, notifications=pb.Subscribe.Notifications())
        self._requests.put(pb.StreamMessageRequest(client_id=client_id, subscribe=subscribe))
        open_stream = channel.stream_stream(
            _SERVICE + "StreamChannel",
            request_serializer=pb.StreamMessageRequest.SerializeToString,
            response_deserializer=pb.StreamMessageResponse.FromString,
        )
        self._call = open_stream(self._outgoing())
        self._reader = threading.Thread(target=self._read, name="bfrt-stream", daemon=True)
        self._reader.start()

    def end(self, timeout_s: float) -> None:
        """Say that there is nothing more to send, and wait until the server has ended the stream."""
        self._requests.put(None)
        if self._reader is not threading.current_thread():
            self._reader.join(timeout_s)
        self.cancel()

    def cancel(self) -> None:
        self._requests.put(None)
        self._call.cancel()

    def _outgoing(self) -> Iterator[pb.StreamMessageRequest]:
        while (request := self._requests.get()) is not None:
            yield request

    def _read(self) -> None:
        error: grpc.RpcError | None = None
        try:
            for message in self._call:
                if message.WhichOneof("update") == "subscribe":
                    self.answered.set()
                else:
                    self._on_message(message)
        except grpc.RpcError as ended:
            error = ended
        if self.answered.is_set():
            self._on_end(error)
        else:
            self.error = error or grpc.RpcError("the server ended the stream")
            self._requests.put(None)
            self.answered.set()


def _details_of(error: grpc.RpcError) -> list[UpdateError | None]:
    """Return the errors of a batch in gRPC's status details; [] if there are none."""
    if not isinstance(error, grpc.Call):
        return []
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS and isinstance(value, bytes):
            with suppress(DecodeError):
                status = pb.Status.FromString(value)
                return [_error_of(pb.Error.FromString(detail.value)) for detail in status.details]
    return []


def _error_of(error: pb.Error) -> UpdateError | None:
    if not error.canonical_code:
        return None
    return UpdateError(_CODES.get(error.canonical_code, grpc.StatusCode.UNKNOWN), " ".join(error.message.split()))


_CODES = {code.value[0]: code for code in grpc.StatusCode}
