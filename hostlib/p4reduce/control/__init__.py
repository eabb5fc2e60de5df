# SPDX-License-Identifier: Apache-2.0
"""The control service: its messages and its client, over gRPC.

This package loads gRPC first, without its fork handlers. They cannot run while the thread of a session is in gRPC, and
say so on stderr in every forked process, such as each worker of a data loader. Nothing is lost: gRPC for Python does
not support forks unless GRPC_ENABLE_FORK_SUPPORT is set. If that is set, or gRPC is loaded already, nothing changes.
"""

from __future__ import annotations

import os

_FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"  # read once, while gRPC is loaded


def _load_grpc() -> None:
    if _FORK_SUPPORT in os.environ:
        return
    os.environ[_FORK_SUPPORT] = "0"
    try:
        import grpc  # noqa: F401
    finally:
        del os.environ[_FORK_SUPPORT]


_load_grpc()
