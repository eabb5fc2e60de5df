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
    AbortJob: grpc.UnaryUnaryMultiCallable[pb.AbortJobRequest, pb.AbortJobReply]
    Slots: grpc.UnaryUnaryMultiCallable[pb.SlotsRequest, pb.SlotsReply]
    AddSwitch: grpc.UnaryUnaryMultiCallable[pb.AddSwitchRequest, pb.SwitchesReply]
    DrainSwitch: grpc.UnaryUnaryMultiCallable[pb.DrainSwitchRequest, pb.SwitchesReply]
    RemoveSwitch: grpc.UnaryUnaryMultiCallable[pb.RemoveSwitchRequest, pb.SwitchesReply]

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
    async def AbortJob(
        self,
        request: pb.AbortJobRequest,
        context: grpc.aio.ServicerContext[pb.AbortJobRequest, pb.AbortJobReply],
    ) -> pb.AbortJobReply: ...
    async def Slots(
        self,
        request: pb.SlotsRequest,
        context: grpc.aio.ServicerContext[pb.SlotsRequest, pb.SlotsReply],
    ) -> pb.SlotsReply: ...
    async def AddSwitch(
        self,
        request: pb.AddSwitchRequest,
        context: grpc.aio.ServicerContext[pb.AddSwitchRequest, pb.SwitchesReply],
    ) -> pb.SwitchesReply: ...
    async def DrainSwitch(
        self,
        request: pb.DrainSwitchRequest,
        context: grpc.aio.ServicerContext[pb.DrainSwitchRequest, pb.SwitchesReply],
    ) -> pb.SwitchesReply: ...
    async def RemoveSwitch(
        self,
        request: pb.RemoveSwitchRequest,
        context: grpc.aio.ServicerContext[pb.RemoveSwitchRequest, pb.SwitchesReply],
    ) -> pb.SwitchesReply: ...

def add_JobsServicer_to_server(servicer: JobsServicer, server: grpc.Server | grpc.aio.Server) -> None: ...
