# SPDX-License-Identifier: Apache-2.0
"""The one place that makes gRPC channels, with the options that all of them need.

Channels ignore web proxies in the environment (`http_proxy`, `https_proxy`): neither controllers, switches nor etcd are
behind one. Each channel has its own connections. By default, gRPC channels to the same address share them, and with
them the backoff after a failed attempt.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import grpc.aio

from p4reduce.control.diagnostics import canonical_address

Options = Sequence[tuple[str, int | str]]
PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
"""Variables from which gRPC takes a proxy's address, for programs whose channels are made elsewhere."""

_ALWAYS = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))


def open_grpc_channel(
    address: str, credentials: grpc.ChannelCredentials | None = None, options: Options = ()
) -> grpc.Channel:
    """Return a channel, which connects at its first call. `credentials`: those of TLS; None for no TLS."""
    if credentials is None:
        return grpc.insecure_channel(grpc_target(address), [*_ALWAYS, *options])
    return grpc.secure_channel(grpc_target(address), credentials, [*_ALWAYS, *options])


def open_aio_channel(
    address: str, credentials: grpc.ChannelCredentials | None = None, options: Options = ()
) -> grpc.aio.Channel:
    """Return a channel like `open_grpc_channel`, for asyncio."""
    if credentials is None:
        return grpc.aio.insecure_channel(grpc_target(address), [*_ALWAYS, *options])
    return grpc.aio.secure_channel(grpc_target(address), credentials, [*_ALWAYS, *options])


def grpc_target(address: str) -> str:
    """Return an address for gRPC: an IPv6 address in its canonical form, with `%25` for the `%` of a zone.

    gRPC would read `%d0` as an escaped byte.
    """
    address = canonical_address(address)
    host, bracket, port = address.rpartition("]")
    return host.replace("%25", "%").replace("%", "%25") + bracket + port if host.startswith("[") else address
