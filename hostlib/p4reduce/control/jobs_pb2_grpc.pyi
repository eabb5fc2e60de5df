# SPDX-License-Identifier: Apache-2.0
# Written by hand: grpcio-tools makes no type stubs for the gRPC half.
from collections.abc import AsyncIterator

import grpc
import grpc.aio

from p4reduce.control import jobs_pb2 as pb

class JobsStub:
    def __init__(self, channel: grpc.Channel) -> None: ...
    Session: grpc.StreamStreamMultiCallable[pb.ClientMessage, pb.ServerMessage]
    Status: grpc.UnaryUnaryMultiCallable[pb.StatusRequest, pb.StatusReply]
    SetLoss: grpc.UnaryUnaryMultiCallable[pb.SetLossRequest, pb.SetLossReply]

class JobsServicer:
    def Session(
        self,
        request_iterator: AsyncIterator[pb.ClientMessage],
        context: grpc.aio.ServicerContext[pb.ClientMessage, pb.ServerMessage],
    ) -> AsyncIterator[pb.ServerMessage]: ...
    async def Status(
        self,
        request: pb.StatusRequest,
        context: grpc.aio.ServicerContext[pb.StatusRequest, pb.StatusReply],
    ) -> pb.StatusReply: ...
    async def SetLoss(
        self,
        request: pb.SetLossRequest,
        context: grpc.aio.ServicerContext[pb.SetLossRequest, pb.SetLossReply],
    ) -> pb.SetLossReply: ...

def add_JobsServicer_to_server(servicer: JobsServicer, server: grpc.Server | grpc.aio.Server) -> None: ...
