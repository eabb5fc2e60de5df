# SPDX-License-Identifier: Apache-2.0
"""The part of gNMI by which a controller learns which ports are up.

It has two leaves of OpenConfig's interfaces: state/ifindex, which is a port's number, and state/oper-status. The name
of an interface is that in --port.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NoReturn

import grpc
from finsy.proto import gnmi, gnmi_grpc

from p4reduce_targets.p4runtime.arbitration import FIRST_MESSAGE_TIMEOUT_S
from p4reduce_targets.ports import PortInfo

MAX_SUBSCRIPTIONS = 8  # each occupies a thread of the server
POLL_INTERVAL_S = 0.2  # between checks of the interfaces
_LEAVES = ("ifindex", "oper-status")


def oper_status(port: PortInfo) -> str:
    """Return OpenConfig's oper-status of a port. An interface is up while its link is up, a socket always."""
    return "UP" if port.interface is None else port.interface.state()


class GnmiService(gnmi_grpc.gNMIServicer):
    def __init__(self, ports: Iterable[PortInfo]) -> None:
        self._ports = {port.number: port for port in ports}
        self._subscriptions = threading.Semaphore(MAX_SUBSCRIPTIONS)

    def Capabilities(self, request: gnmi.CapabilityRequest, context: Any) -> gnmi.CapabilityResponse:  # noqa: ARG002
        model = gnmi.ModelData(name="openconfig-interfaces", organization="OpenConfig working group", version="2.4.3")
        return gnmi.CapabilityResponse(supported_models=[model], supported_encodings=[gnmi.PROTO], gNMI_version="0.7.0")

    def Get(self, request: gnmi.GetRequest, context: Any) -> gnmi.GetResponse:
        leaves = [leaf for path in request.path for leaf in self._leaves(request.prefix, path, context)]
        return gnmi.GetResponse(notification=[self._notification([leaf]) for leaf in leaves])

    def Set(self, request: gnmi.SetRequest, context: Any) -> NoReturn:  # noqa: ARG002
        _refuse(context, grpc.StatusCode.UNIMPLEMENTED, "nothing can be set here")

    def Subscribe(self, requests: Iterator[gnmi.SubscribeRequest], context: Any) -> Iterator[gnmi.SubscribeResponse]:
        """Yield the present states and then each change: streams of all modes are ON_CHANGE."""
        if not self._subscriptions.acquire(blocking=False):
            _refuse(
                context, grpc.StatusCode.RESOURCE_EXHAUSTED, f"accepted are up to {MAX_SUBSCRIPTIONS} subscriptions"
            )
        try:
            first = self._first(requests, context)
            wanted = first.subscribe
            if not first.HasField("subscribe") or wanted.mode == gnmi.SubscriptionList.POLL:
                _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "accepted are subscriptions in mode ONCE or STREAM")
            leaves = [leaf for one in wanted.subscription for leaf in self._leaves(wanted.prefix, one.path, context)]
            before = {leaf: self._value(leaf) for leaf in leaves}
            for leaf in leaves:
                yield gnmi.SubscribeResponse(update=self._notification([leaf], before))
            yield gnmi.SubscribeResponse(sync_response=True)
            while wanted.mode == gnmi.SubscriptionList.STREAM and context.is_active():
                time.sleep(POLL_INTERVAL_S)
                now = {leaf: self._value(leaf) for leaf in leaves}
                if changed := [leaf for leaf in leaves if now[leaf] != before[leaf]]:
                    yield gnmi.SubscribeResponse(update=self._notification(changed, now))
                before = now
        finally:
            self._subscriptions.release()

    def _first(self, requests: Iterator[gnmi.SubscribeRequest], context: Any) -> gnmi.SubscribeRequest:
        received: SimpleQueue[gnmi.SubscribeRequest] = SimpleQueue()

        def read_first() -> None:
            with suppress(grpc.RpcError):  # the stream has ended
                received.put(next(requests, gnmi.SubscribeRequest()))

        threading.Thread(target=read_first, name="gnmi-stream", daemon=True).start()
        try:
            return received.get(timeout=FIRST_MESSAGE_TIMEOUT_S)
        except Empty:
            _refuse(
                context, grpc.StatusCode.DEADLINE_EXCEEDED, f"no subscription came within {FIRST_MESSAGE_TIMEOUT_S:g} s"
            )

    def _leaves(self, prefix: gnmi.Path, path: gnmi.Path, context: Any) -> list[tuple[int, str]]:
        """Return the leaves that a path selects, as pairs of port number and name in `_LEAVES`."""
        parts = [*prefix.elem, *path.elem]
        names = [part.name for part in parts]
        if names[:3] != ["interfaces", "interface", "state"] or len(parts) > 4 or (set(names[3:]) - set(_LEAVES)):
            text = "/".join(names)
            leaves = " and ".join(_LEAVES)
            _refuse(context, grpc.StatusCode.NOT_FOUND, f"{text}: interfaces/interface[name=*]/state has {leaves}")
        name = parts[1].key.get("name", "*")
        numbers = [number for number, port in self._ports.items() if name in ("*", port.name)]
        if not numbers and name != "*":
            _refuse(context, grpc.StatusCode.NOT_FOUND, f"there is no interface {name!r}")
        return [(number, leaf) for number in sorted(numbers) for leaf in names[3:] or _LEAVES]

    def _value(self, leaf: tuple[int, str]) -> int | str:
        number, what = leaf
        return number if what == "ifindex" else oper_status(self._ports[number])

    def _notification(
        self, leaves: list[tuple[int, str]], values: Mapping[tuple[int, str], int | str] | None = None
    ) -> gnmi.Notification:
        notification = gnmi.Notification(timestamp=time.time_ns())
        for leaf in leaves:
            value = values[leaf] if values is not None else self._value(leaf)
            typed = gnmi.TypedValue(uint_val=value) if isinstance(value, int) else gnmi.TypedValue(string_val=value)
            notification.update.append(gnmi.Update(path=self._path(*leaf), val=typed))
        return notification

    def _path(self, number: int, leaf: str) -> gnmi.Path:
        interface = gnmi.PathElem(name="interface", key={"name": self._ports[number].name})
        return gnmi.Path(
            elem=[gnmi.PathElem(name="interfaces"), interface, gnmi.PathElem(name="state"), gnmi.PathElem(name=leaf)]
        )


def _refuse(context: Any, code: grpc.StatusCode, why: str) -> NoReturn:
    context.abort(code, why)
    raise AssertionError
