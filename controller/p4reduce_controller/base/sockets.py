# SPDX-License-Identifier: Apache-2.0
"""What strangers who connect and say nothing may cost: sockets of this process, for a while."""

from __future__ import annotations

import resource

HANDSHAKE_S = 5  # from a connection's beginning until its client must have begun to speak HTTP/2; gRPC's default is 120
QUIET = (("grpc.server_handshake_timeout_ms", 1000 * HANDSHAKE_S),)


def take_all_sockets() -> None:
    """As many open files as this process may have, not as many as are given at first, which may be 1024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
