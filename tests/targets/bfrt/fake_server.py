# SPDX-License-Identifier: Apache-2.0
"""A small BF Runtime server that answers as a test asks it to."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc

from p4reduce_targets.bfrt import bfruntime_pb2 as pb


@dataclass
class Rpc:
    """A status to end a call with; `details`: errors of a batch, None for a success."""

    code: grpc.StatusCode
    message: str = ""
    details: list[tuple[grpc.StatusCode, str] | None] = field(default_factory=list)

    def metadata(self) -> tuple[tuple[str, bytes], ...]:
        errors = [
            pb.Error(canonical_code=one[0].value[0], message=one[1]) if one is not None else pb.Error()
            for one in self.details
        ]
        packed = [
            pb.Detail(type_url="type.googleapis.com/bfrt_proto.Error", value=error.SerializeToString())
            for error in errors
        ]
        status = pb.Status(code=self.code.value[0], message=self.message, details=packed)
        return (("grpc-status-details-bin", status.SerializeToString()),)


class FakeServer:
    """A server at `address`. Tests set its answers, and look at `requests`, the calls that came."""

    def __init__(self, address: str = "127.0.0.1:0") -> None:
        self.running = pb.GetForwardingPipelineConfigResponse()
        self.taken: set[int] = set()  # client numbers, of others
        self.takes_none = False
        self.clients: dict[int, Any] = {}
        self.gone = threading.Event()  # a client's stream has ended
        self.bind_refusal: Rpc | None = None
        self.write_refusals: list[Rpc | None] = []  # of the next calls
        self.read_refusals: list[Rpc | None] = []
        self.reads: list[pb.ReadResponse] = []  # answers of the next calls
        self.requests: list[Any] = []
        self.hangs = threading.Event()
        self.goes_on = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(8))
        handlers = {
            "Write": _unary(self._write, pb.WriteRequest),
            "Read": grpc.unary_stream_rpc_method_handler(
                self._read,
                request_deserializer=pb.ReadRequest.FromString,
                response_serializer=pb.ReadResponse.SerializeToString,
            ),
            "SetForwardingPipelineConfig": _unary(self._set, pb.SetForwardingPipelineConfigRequest),
            "GetForwardingPipelineConfig": _unary(self._get, pb.GetForwardingPipelineConfigRequest),
            "StreamChannel": grpc.stream_stream_rpc_method_handler(
                self._stream,
                request_deserializer=pb.StreamMessageRequest.FromString,
                response_serializer=pb.StreamMessageResponse.SerializeToString,
            ),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bfrt_proto.BfRuntime", handlers),))
        self.port = self._server.add_insecure_port(address)
        self.address = f"127.0.0.1:{self.port}"
        self._server.start()

    def close(self) -> None:
        self.goes_on.set()
        for messages in list(self.clients.values()):
            messages.put(None)
        self._server.stop(0).wait(5)

    def tell(self, kind: pb.SetForwardingPipelineConfigResponseType) -> None:
        """Write a message about an installation to every stream."""
        message = pb.StreamMessageResponse()
        message.set_forwarding_pipeline_config_response.set_forwarding_pipeline_config_response_type = kind
        for messages in list(self.clients.values()):
            messages.put(message)

    def kick(self) -> None:
        """End every stream."""
        for messages in list(self.clients.values()):
            messages.put(None)

    def _stream(self, requests: Iterator[Any], context: Any) -> Iterator[pb.StreamMessageResponse]:
        first = next(requests)
        if self.takes_none or first.client_id in self.taken or first.client_id in self.clients:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Can't have two clients with the same client id")
        messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.clients[first.client_id] = messages

        def watch() -> None:
            with suppress(Exception):
                for _ in requests:
                    pass
            messages.put(None)

        threading.Thread(target=watch, daemon=True).start()
        self.requests.append(first)
        yield pb.StreamMessageResponse(subscribe=pb.Subscribe(status=pb.Status()))
        while (message := messages.get()) is not None:
            yield message
        del self.clients[first.client_id]
        self.gone.set()

    def _wait(self) -> None:
        if self.hangs.is_set():
            self.goes_on.wait(30)

    def _write(self, request: pb.WriteRequest, context: Any) -> pb.WriteResponse:
        self._wait()
        self.requests.append(request)
        self._refuse(self.write_refusals, context)
        return pb.WriteResponse()

    @staticmethod
    def _refuse(refusals: list[Rpc | None], context: Any) -> None:
        if refusals and (refusal := refusals.pop(0)) is not None:
            if refusal.details:
                context.set_trailing_metadata(refusal.metadata())
            context.abort(refusal.code, refusal.message)

    def _read(self, request: pb.ReadRequest, context: Any) -> Iterator[pb.ReadResponse]:
        self._wait()
        self.requests.append(request)
        yield self.reads.pop(0)
        self._refuse(self.read_refusals, context)

    def _set(self, request: Any, context: Any) -> pb.SetForwardingPipelineConfigResponse:
        self.requests.append(request)
        if request.action == request.BIND:
            if self.bind_refusal is not None:
                context.abort(self.bind_refusal.code, self.bind_refusal.message)
        else:
            self.tell(pb.WARM_INIT_STARTED)
            self.running = pb.GetForwardingPipelineConfigResponse(config=request.config)
            self.tell(pb.WARM_INIT_FINISHED)
        return pb.SetForwardingPipelineConfigResponse()

    def _get(self, request: Any, _context: Any) -> pb.GetForwardingPipelineConfigResponse:
        self.requests.append(request)
        return self.running


def _unary(method: Any, request: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        method,
        request_deserializer=request.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )
