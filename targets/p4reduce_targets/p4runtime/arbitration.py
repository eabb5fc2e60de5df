# SPDX-License-Identifier: Apache-2.0
"""Client arbitration: the choice of the primary among several controllers (section 5 of P4Runtime's specification)."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TypeAlias

from finsy.proto import p4r
from grpc import StatusCode

from p4reduce_targets.p4runtime.errors import Refused, number, unsupported

MAX_CONTROLLERS = 16  # as in BMv2
FIRST_MESSAGE_TIMEOUT_S = 10.0  # a stream that stays silent for longer would keep others out
# A controller that does not read its stream must not fill the memory of the switch. It loses packet-ins above the first
# limit, and errors above the second. Its stream ends at the third.
MAX_QUEUED_PACKET_INS = 8192
MAX_QUEUED_ERRORS = 64
MAX_QUEUED_MESSAGES = 2 * MAX_QUEUED_PACKET_INS

Message: TypeAlias = "p4r.StreamMessageResponse | Refused | None"  # Refused and None end the stream


class Controller:
    """The open stream of one controller, which gets every message that is put into `outbox`."""

    def __init__(self) -> None:
        self.outbox: SimpleQueue[Message] = SimpleQueue()
        self.has_arbitrated = False
        self.is_overflowed = False  # too many messages are queued, and the stream ends after them
        self.election_id: int | None = None  # None: a backup that cannot become primary

    def error(self, message: p4r.StreamMessageResponse) -> None:
        """Queue an error for the controller; drop it if too many messages are queued."""
        if self.outbox.qsize() < MAX_QUEUED_ERRORS:
            self.outbox.put(message)


class Arbitration:
    """The controllers of one device. Thread safe: one lock keeps messages of all kinds in order.

    As in BMv2, the primary is the connected controller with the highest election id. When it disconnects, the next one
    becomes primary.
    """

    def __init__(self, device_id: int) -> None:
        self.device_id = device_id
        self.packets_lost = 0  # packet-ins without a primary that reads them
        self._lock = threading.Lock()
        self._controllers: list[Controller] = []

    def join(self, controller: Controller) -> None:
        """Add a stream that was opened. Raises Refused if there are too many."""
        with self._lock:
            if len(self._controllers) >= MAX_CONTROLLERS:
                raise Refused(
                    StatusCode.RESOURCE_EXHAUSTED, f"Too many connections: accepted are up to {MAX_CONTROLLERS}"
                )
            self._controllers.append(controller)

    def update(self, controller: Controller, request: p4r.MasterArbitrationUpdate) -> None:
        """Set the election id that a controller has sent. Raises Refused, which ends its stream."""
        self.check_device(request.device_id)
        if request.HasField("role") and (request.role.name or request.role.id):
            raise unsupported("Only the default role is supported: leave role unset")
        election_id = uint128(request.election_id) or None
        with self._lock:
            if controller.is_overflowed:
                raise _overflow_error()
            others = [other for other in self._controllers if other is not controller and other.has_arbitrated]
            if election_id is not None and any(other.election_id == election_id for other in others):
                raise Refused(StatusCode.INVALID_ARGUMENT, f"Election id already exists: {election_id}")
            before = self._primary_state()
            controller.has_arbitrated, controller.election_id = True, election_id
            self._notify(None if self._primary_state() != before else controller)

    def leave(self, controller: Controller) -> None:
        """Remove a stream that has ended. Further calls do nothing."""
        with self._lock:
            if controller in self._controllers:
                before = self._primary_state()
                self._controllers.remove(controller)
                if self._primary_state() != before:
                    self._notify(None)
        controller.outbox.put(None)

    def is_primary(self, controller: Controller) -> bool:
        with self._lock:
            return controller is self._primary()

    def check_device(self, device_id: int) -> None:
        if device_id != self.device_id:
            raise Refused(StatusCode.NOT_FOUND, f"There is no device {device_id} here: this is {self.device_id}")

    def check_primary(self, election_id: p4r.Uint128) -> None:
        """Raise Refused (PERMISSION_DENIED) unless the election id is the primary's."""
        with self._lock:
            primary = self._primary()
            if primary is None or primary.election_id != uint128(election_id):
                raise Refused(StatusCode.PERMISSION_DENIED, "Not primary")

    def queue_packet_in(self, packet: p4r.PacketIn) -> None:
        """Queue a packet-in for the primary; drop and count it without a primary, or if too many are queued."""
        with self._lock:
            primary = self._primary()
            if primary is None or primary.outbox.qsize() >= MAX_QUEUED_PACKET_INS:
                self.packets_lost += 1
            else:
                primary.outbox.put(p4r.StreamMessageResponse(packet=packet))

    def _primary(self) -> Controller | None:
        candidates = [one for one in self._controllers if one.election_id is not None]
        return max(candidates, key=lambda one: one.election_id or 0, default=None)

    def _primary_state(self) -> tuple[Controller | None, int | None]:
        primary = self._primary()
        return primary, None if primary is None else primary.election_id

    def _notify(self, only: Controller | None) -> None:
        primary = self._primary()
        for controller in self._controllers:
            if controller.has_arbitrated and not controller.is_overflowed and only in (None, controller):
                if controller.outbox.qsize() < MAX_QUEUED_MESSAGES:
                    controller.outbox.put(self._arbitration_update(controller, primary))
                else:
                    controller.is_overflowed = True
                    controller.outbox.put(_overflow_error())

    def _arbitration_update(self, controller: Controller, primary: Controller | None) -> p4r.StreamMessageResponse:
        message = p4r.StreamMessageResponse()
        update = message.arbitration
        update.device_id = self.device_id
        if primary is None or primary.election_id is None:
            update.status.code, update.status.message = number(StatusCode.NOT_FOUND), "There is no primary"
            return message
        update.election_id.high, update.election_id.low = divmod(primary.election_id, 1 << 64)
        if controller is primary:
            update.status.message = "Is primary"
        else:
            update.status.code, update.status.message = number(StatusCode.ALREADY_EXISTS), "Is backup"
        return message


def _overflow_error() -> Refused:
    return Refused(StatusCode.RESOURCE_EXHAUSTED, f"{MAX_QUEUED_MESSAGES} messages wait to be read")


def uint128(value: p4r.Uint128) -> int:
    """Return the number; an unset message is 0."""
    return value.high << 64 | value.low
