# SPDX-License-Identifier: Apache-2.0
"""The gRPC server around the P4Runtime service."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import grpc
from finsy.proto import gnmi_grpc, p4r_grpc

from p4reduce.control import diagnostics
from p4reduce.control.grpc_channels import grpc_target
from p4reduce_targets.p4runtime.arbitration import MAX_CONTROLLERS, Arbitration
from p4reduce_targets.p4runtime.device import Device
from p4reduce_targets.p4runtime.gnmi import MAX_SUBSCRIPTIONS, GnmiService
from p4reduce_targets.p4runtime.service import P4RuntimeService
from p4reduce_targets.ports import PortInfo

_OTHER_CALLS = 8  # threads beside those that streams occupy
_OPTIONS = (
    ("grpc.so_reuseport", 0),  # a second server on the same port must fail, not take half of the calls
    ("grpc.max_receive_message_length", 256 << 20),  # as BMv2: programs are large
    ("grpc.max_send_message_length", 256 << 20),
    ("grpc.keepalive_time_ms", 20_000),  # detects controllers that vanished
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
)


class Server:
    """A P4Runtime server, which listens from its construction on; use it as a context manager.

    `address` is "host:port" (port 0: any free one) or "unix:path"; the attribute has the actual port. Without `tls`,
    connections are not encrypted. The constructor raises OSError if it cannot listen at the address.
    """

    def __init__(
        self,
        device: Device,
        *,
        address: str = "127.0.0.1:9559",
        device_id: int = 1,
        tls: grpc.ServerCredentials | None = None,
        ports: Iterable[PortInfo] | None = None,
    ) -> None:
        """Start the server. With `ports`, it also offers gNMI."""
        if why := diagnostics.cannot_listen(address):  # before gRPC logs a less clear message
            raise OSError(f"cannot listen for P4Runtime at {address}: {why}")
        self.arbitration = Arbitration(device_id)
        self._pool = ThreadPoolExecutor(
            MAX_CONTROLLERS + MAX_SUBSCRIPTIONS + _OTHER_CALLS, thread_name_prefix="p4runtime"
        )
        self._server = grpc.server(self._pool, options=_OPTIONS)
        p4r_grpc.add_P4RuntimeServicer_to_server(P4RuntimeService(device, self.arbitration), self._server)
        if ports is not None:
            gnmi_grpc.add_gNMIServicer_to_server(GnmiService(ports), self._server)
        try:
            if tls is None:
                port = self._server.add_insecure_port(grpc_target(address))
            else:
                port = self._server.add_secure_port(grpc_target(address), tls)
        except RuntimeError as error:
            self._pool.shutdown()
            raise OSError(f"cannot listen for P4Runtime at {address}: {error}") from error
        self.address = address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"
        self._server.start()

    def close(self) -> None:
        """End every call and stop listening."""
        self._server.stop(grace=0).wait()
        self._pool.shutdown()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
