# SPDX-License-Identifier: Apache-2.0
"""The P4Runtime service: permissions of controllers, and loading of pipelines."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import grpc
from finsy.proto import p4r, p4r_grpc
from grpc import StatusCode

from p4reduce_targets.dataplane import DataPlaneLost
from p4reduce_targets.p4runtime.arbitration import FIRST_MESSAGE_TIMEOUT_S, Arbitration, Controller
from p4reduce_targets.p4runtime.device import Device
from p4reduce_targets.p4runtime.errors import (
    SPACE,
    Refused,
    abort,
    invalid,
    message_of,
    number,
    unavailable,
    unsupported,
)
from p4reduce_targets.p4runtime.pipeline import Pipeline
from p4reduce_targets.p4runtime.program import read_program

API_VERSION = "1.3.0"
_MAX_ENTITIES_PER_RESPONSE = 1000  # keeps a large Read's messages below gRPC's usual limit of 4 MiB

_Set = p4r.SetForwardingPipelineConfigRequest
_Get = p4r.GetForwardingPipelineConfigRequest


@contextmanager
def _aborting(context: grpc.ServicerContext) -> Iterator[None]:
    """Abort the call if it is refused, or if the data plane is lost."""
    try:
        yield
    except Refused as error:
        abort(context, error)
    except DataPlaneLost as error:
        abort(context, unavailable(str(error)))


class P4RuntimeService(p4r_grpc.P4RuntimeServicer):
    """The P4Runtime service of one device."""

    def __init__(self, device: Device, arbitration: Arbitration) -> None:
        self._device = device
        self._arbitration = arbitration
        self._configuring = threading.Lock()  # held while a program is loaded, so that there is one at a time
        self._saved: Pipeline | None = None
        self._running: Pipeline | None = None
        device.on_packet_in = self._packet_in

    def Capabilities(self, request: p4r.CapabilitiesRequest, context: grpc.ServicerContext) -> p4r.CapabilitiesResponse:
        del request, context
        return p4r.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    def Write(self, request: p4r.WriteRequest, context: grpc.ServicerContext) -> p4r.WriteResponse:
        with _aborting(context):
            self._arbitration.check_device(request.device_id)
            self._arbitration.check_primary(request.election_id)
            if request.atomicity != p4r.WriteRequest.CONTINUE_ON_ERROR:
                raise unsupported("Support for atomic write modes has not been implemented: CONTINUE_ON_ERROR is")
            with self._device.exclusive():
                self._pipeline().write(request.updates)
        return p4r.WriteResponse()

    def Read(self, request: p4r.ReadRequest, context: grpc.ServicerContext) -> Iterator[p4r.ReadResponse]:
        with _aborting(context):
            self._arbitration.check_device(request.device_id)
            try:
                with self._device.exclusive():
                    entities = list(self._pipeline().read(request.entities))
            except (KeyError, ValueError) as error:
                why = f"Error when reading from target: {message_of(error)}"
                raise Refused(StatusCode.UNKNOWN, why) from error
        rest = iter(entities)
        while chunk := list(islice(rest, _MAX_ENTITIES_PER_RESPONSE)):
            yield p4r.ReadResponse(entities=chunk)

    def SetForwardingPipelineConfig(
        self, request: p4r.SetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4r.SetForwardingPipelineConfigResponse:
        with _aborting(context):
            self._arbitration.check_device(request.device_id)
            self._arbitration.check_primary(request.election_id)
            with self._configuring:
                self._configure(request)
        return p4r.SetForwardingPipelineConfigResponse()

    def _configure(self, request: p4r.SetForwardingPipelineConfigRequest) -> None:
        action = request.action
        if action == _Set.COMMIT:
            if self._saved is None:
                raise Refused(StatusCode.UNKNOWN, "There is no saved config to commit: VERIFY_AND_SAVE one first")
            self._commit(self._saved, keep=False)
            return
        if action not in (_Set.VERIFY, _Set.VERIFY_AND_SAVE, _Set.VERIFY_AND_COMMIT, _Set.RECONCILE_AND_COMMIT):
            raise invalid("Invalid SetForwardingPipeline action")
        pipeline = self._load(request.config)
        if action == _Set.VERIFY_AND_SAVE:
            self._saved = pipeline
        elif action != _Set.VERIFY:
            self._commit(pipeline, keep=action == _Set.RECONCILE_AND_COMMIT)

    def _load(self, config: p4r.ForwardingPipelineConfig) -> Pipeline:
        program = read_program(config.p4info)
        try:
            data_plane = self._device.load(config.p4_device_config)
        except ValueError as error:
            raise Refused(StatusCode.UNKNOWN, f"The device config cannot be loaded: {error}") from error
        return Pipeline(config, program, data_plane)

    def _commit(self, pipeline: Pipeline, *, keep: bool) -> None:
        with self._device.exclusive():
            if keep and self._running is not None:
                try:
                    pipeline.replay(self._running)
                except (Refused, KeyError, ValueError) as error:
                    raise Refused(StatusCode.UNKNOWN, f"Error when reconciling config: {message_of(error)}") from error
            try:
                self._device.run_program(pipeline.data_plane)
            except ValueError as error:
                raise Refused(StatusCode.UNKNOWN, f"Error when committing config: {error}") from error
            except DataPlaneLost:
                self._running = None  # what is read back must be in the switch
                raise
            self._running, self._saved = pipeline, None

    def GetForwardingPipelineConfig(
        self, request: p4r.GetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4r.GetForwardingPipelineConfigResponse:
        response = p4r.GetForwardingPipelineConfigResponse()
        with _aborting(context):
            self._arbitration.check_device(request.device_id)
            config = self._pipeline().config
            wanted = request.response_type
            if wanted not in _Get.ResponseType.values():
                raise invalid("Invalid response_type in GetForwardingPipelineConfigRequest")
        if wanted in (_Get.ALL, _Get.P4INFO_AND_COOKIE):
            response.config.p4info.CopyFrom(config.p4info)
        if wanted in (_Get.ALL, _Get.DEVICE_CONFIG_AND_COOKIE):
            response.config.p4_device_config = config.p4_device_config
        if config.HasField("cookie"):
            response.config.cookie.CopyFrom(config.cookie)
        return response

    def _pipeline(self) -> Pipeline:
        if self._running is None:
            raise Refused(StatusCode.FAILED_PRECONDITION, "No forwarding pipeline config set for this device")
        return self._running

    def StreamChannel(
        self, request_iterator: Iterator[p4r.StreamMessageRequest], context: grpc.ServicerContext
    ) -> Iterator[p4r.StreamMessageResponse]:
        controller = Controller()
        try:
            self._arbitration.join(controller)
        except Refused as error:
            abort(context, error)
        if not context.add_callback(lambda: self._arbitration.leave(controller)):
            self._arbitration.leave(controller)
        reader = threading.Thread(
            target=self._read_stream, args=(controller, request_iterator), name="p4runtime-stream", daemon=True
        )
        reader.start()
        silence = threading.Timer(FIRST_MESSAGE_TIMEOUT_S, self._end_silent_stream, [controller])
        silence.daemon = True
        silence.start()
        context.add_callback(silence.cancel)
        while (message := controller.outbox.get()) is not None:
            if isinstance(message, Refused):
                self._arbitration.leave(controller)
                abort(context, message)
            yield message
        self._arbitration.leave(controller)

    def _read_stream(self, controller: Controller, requests: Iterator[p4r.StreamMessageRequest]) -> None:
        end: Refused | None = None
        try:
            for request in requests:
                self._handle(controller, request)
        except Refused as error:
            end = error
        except grpc.RpcError:  # the connection was lost
            pass
        finally:
            controller.outbox.put(end)

    def _end_silent_stream(self, controller: Controller) -> None:
        if not controller.has_arbitrated:
            why = f"no arbitration came within {FIRST_MESSAGE_TIMEOUT_S:g} s"
            controller.outbox.put(Refused(StatusCode.DEADLINE_EXCEEDED, why))

    def _handle(self, controller: Controller, request: p4r.StreamMessageRequest) -> None:
        kind = request.WhichOneof("update")
        if kind == "arbitration":
            self._arbitration.update(controller, request.arbitration)
        elif kind == "packet":
            self._packet_out(controller, request.packet)
        else:
            self._stream_error(controller, unsupported("Only arbitration and packet-out are supported"))

    def _packet_out(self, controller: Controller, packet: p4r.PacketOut) -> None:
        try:
            if not self._arbitration.is_primary(controller):
                raise Refused(StatusCode.PERMISSION_DENIED, "Not primary")
            frame = self._pipeline().packet_out.pack(packet)
        except Refused as error:
            self._stream_error(controller, error, of_packet=True)
        else:
            self._device.packet_out(frame)

    def _stream_error(self, controller: Controller, error: Refused, *, of_packet: bool = False) -> None:
        """Queue a StreamError. It does not contain the message that it is about, which may be long."""
        message = p4r.StreamMessageResponse()
        message.error.canonical_code = number(error.code)
        message.error.message = error.message
        message.error.space = SPACE
        if not of_packet:
            message.error.other.SetInParent()
        else:
            message.error.packet_out.SetInParent()
        controller.error(message)

    def _packet_in(self, frame: bytes) -> None:
        pipeline = self._running
        packet = None if pipeline is None else pipeline.packet_in.unpack(frame)
        if packet is not None:
            self._arbitration.queue_packet_in(packet)
