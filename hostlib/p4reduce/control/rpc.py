# SPDX-License-Identifier: Apache-2.0
"""The gRPC service `Jobs` of jobs.proto: the client's stub and the server's base class.

Both are made from the descriptor in jobs_pb2, so no generated code repeats each method.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import grpc
import grpc.aio
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from p4reduce.control import jobs_pb2 as pb

_FILE = FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)
_SERVICE = f"{_FILE.package}.{_FILE.service[0].name}"
_WAY = {False: "unary", True: "stream"}


class _Method(NamedTuple):
    name: str
    kind: str
    """The part of grpc's function names that says which sides stream: "unary_unary", "stream_stream"."""
    request: Any
    reply: Any


def _message(full_name: str) -> Any:
    return getattr(pb, full_name.rpartition(".")[2])


METHODS = [
    _Method(
        method.name,
        f"{_WAY[method.client_streaming]}_{_WAY[method.server_streaming]}",
        _message(method.input_type),
        _message(method.output_type),
    )
    for method in _FILE.service[0].method
]


class JobsStub:
    """The service's methods, as calls over a channel."""

    Session: grpc.StreamStreamMultiCallable[pb.ClientMessage, pb.ServerMessage]
    Status: grpc.UnaryUnaryMultiCallable[pb.StatusRequest, pb.StatusReply]
    SetLoss: grpc.UnaryUnaryMultiCallable[pb.SetLossRequest, pb.SetLossReply]
    AbortJob: grpc.UnaryUnaryMultiCallable[pb.AbortJobRequest, pb.AbortJobReply]
    Slots: grpc.UnaryUnaryMultiCallable[pb.SlotsRequest, pb.SlotsReply]
    AddSwitch: grpc.UnaryUnaryMultiCallable[pb.AddSwitchRequest, pb.SwitchesReply]
    DrainSwitch: grpc.UnaryUnaryMultiCallable[pb.DrainSwitchRequest, pb.SwitchesReply]
    RemoveSwitch: grpc.UnaryUnaryMultiCallable[pb.RemoveSwitchRequest, pb.SwitchesReply]

    def __init__(self, channel: grpc.Channel | grpc.aio.Channel) -> None:
        for name, kind, request, reply in METHODS:
            call = getattr(channel, kind)(f"/{_SERVICE}/{name}", request.SerializeToString, reply.FromString)
            setattr(self, name, call)


class JobsServicer:
    """The base class of servers. gRPC answers calls of methods that a server lacks with UNIMPLEMENTED."""


def add_JobsServicer_to_server(servicer: JobsServicer, server: grpc.Server | grpc.aio.Server) -> None:
    """Make the server call the servicer's methods."""
    handlers = {
        name: getattr(grpc, f"{kind}_rpc_method_handler")(
            getattr(servicer, name), request.FromString, reply.SerializeToString
        )
        for name, kind, request, reply in METHODS
        if hasattr(servicer, name)
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
