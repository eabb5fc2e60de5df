# SPDX-License-Identifier: Apache-2.0
"""The address and the options of the control service's server."""

from __future__ import annotations

import ipaddress
import resource
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc
import grpc.aio

from p4reduce.control import diagnostics
from p4reduce.control.certificates import TlsFiles, server_credentials
from p4reduce.control.channel import LEASE, keepalive
from p4reduce.control.grpc_channels import grpc_target
from p4reduce_controller.base.limits import Rates
from p4reduce_controller.base.sizes import MOST_READ

HANDSHAKE_S = 5  # seconds until a new client must speak HTTP/2; gRPC's default is 120
HANDSHAKE_OPTIONS = (("grpc.server_handshake_timeout_ms", 1000 * HANDSHAKE_S),)


def take_all_sockets() -> None:
    """Raise this process's limit of open files, which may be 1024 at first, to the hard limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def file_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def most_connections() -> int:
    """Return how many ranks may be connected, so that files are left for switches and for other callers."""
    limit = file_limit()
    return max(limit - FILES_LEFT, limit // 2)


FILES_LEFT = 512  # of this process's limit of open files
MOST_STREAMS = 128  # streams per connection; a rank has one or two
MOST_PENDING = 16384  # calls that no handler has got yet, such as all ranks of some large jobs; gRPC has 1,000


class ListenError(Exception):
    """An error: the service cannot listen as configured. The message says what to change."""


@dataclass(frozen=True)
class ServiceConfig:
    """The configuration of the server.

    `tls`: its certificate, and the authorities for clients, who then need a certificate. Without it the service is in
    plain text, on loopback addresses only unless `insecure` is set.
    `lease`: seconds until it notices that a client's host has vanished.
    `rates`: limits per host, if there are no users.
    """

    listen: str = "127.0.0.1:7700"
    token: str | None = None
    tls: TlsFiles | None = None
    insecure: bool = False
    lease: float = LEASE
    rates: Rates = field(default_factory=Rates)


def check_listen(config: ServiceConfig) -> None:
    """Raise ListenError for an invalid address, and for one that is open to other hosts without protection."""
    try:
        diagnostics.check_address("--listen", config.listen, "127.0.0.1:7700", least=0)
    except ValueError as error:
        raise ListenError(str(error)) from None
    host = config.listen.rpartition(":")[0]
    if not (config.tls or config.insecure or is_loopback(host)):
        raise ListenError(
            f"--listen {config.listen} is open to other hosts without TLS; "
            "give --tls-cert and --tls-key, or --insecure if the network is trusted"
        )


def bound_server(
    config: ServiceConfig, interceptors: Sequence[grpc.aio.ServerInterceptor]
) -> tuple[grpc.aio.Server, str]:
    """Return a server that is bound but has no service yet, and its address. Raises ListenError.

    `interceptors`: see all calls, and admit them.
    """
    check_listen(config)
    if why := diagnostics.cannot_listen(config.listen):  # gRPC would log it in its own words
        raise ListenError(f"cannot listen on {config.listen}: {why}")
    # Without the first option, a second controller could bind the same port.
    options = [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", MOST_READ),
        ("grpc.max_concurrent_streams", MOST_STREAMS),
        ("grpc.server.max_pending_requests", MOST_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", MOST_PENDING),
        *HANDSHAKE_OPTIONS,
        *keepalive(config.lease),
    ]
    server = grpc.aio.server(interceptors=list(interceptors), options=options)
    try:
        if config.tls is not None:
            port = server.add_secure_port(grpc_target(config.listen), server_credentials(config.tls))
        else:
            port = server.add_insecure_port(grpc_target(config.listen))
    except RuntimeError as error:
        raise ListenError(f"cannot listen on {config.listen}: {error}") from None
    return server, f"{diagnostics.canonical_address(config.listen).rpartition(':')[0]}:{port}"


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(diagnostics.canonical_address(host).strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
