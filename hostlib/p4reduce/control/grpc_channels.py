# SPDX-License-Identifier: Apache-2.0
"""The one place that makes gRPC channels, so that what holds for all of them is said once.

A web proxy in the environment (`http_proxy`, `https_proxy`) is not used: neither controllers, switches nor etcd are
behind one. A channel has connections of its own: gRPC would share those of channels to the same address, and with them
the wait after a failed attempt.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import grpc.aio

Options = Sequence[tuple[str, int | str]]
PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
"""Variables from which gRPC takes a proxy's address, for programs whose channels are made elsewhere."""

_ALWAYS = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))


def open_grpc_channel(
    address: str, credentials: grpc.ChannelCredentials | None = None, options: Options = ()
) -> grpc.Channel:
    """Connect when it is used. `credentials`: those of TLS; without them, in the clear."""
    if credentials is None:
        return grpc.insecure_channel(grpc_target(address), [*_ALWAYS, *options])
    return grpc.secure_channel(grpc_target(address), credentials, [*_ALWAYS, *options])


def open_aio_channel(
    address: str, credentials: grpc.ChannelCredentials | None = None, options: Options = ()
) -> grpc.aio.Channel:
    """Return the same for asyncio."""
    if credentials is None:
        return grpc.aio.insecure_channel(grpc_target(address), [*_ALWAYS, *options])
    return grpc.aio.secure_channel(grpc_target(address), credentials, [*_ALWAYS, *options])


def grpc_target(address: str) -> str:
    """Return the address as gRPC's clients and servers take it, which read `%d0` of `[fe80::1%d0]:7700` as an escaped
    byte."""
    host, bracket, port = address.rpartition("]")
    return host.replace("%25", "%").replace("%", "%25") + bracket + port if host.startswith("[") else address
