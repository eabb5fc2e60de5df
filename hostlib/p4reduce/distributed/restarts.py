# SPDX-License-Identifier: Apache-2.0
"""Help for process groups that are made again: by ranks that torchrun restarted, or after `destroy_process_group`."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import BroadcastOptions, PrefixStore, TCPStore
from torch.distributed import DistBackendError

# If a process makes many Gloo groups one after the other, a new group sometimes loses a connection at once: "reset by
# peer".
_LOST = ("Connection reset by peer", "Connection closed by peer")
_ATTEMPTS = 3
_VERDICT_TIMEOUT = timedelta(seconds=10)


def connect(make: Callable[[str], Any], store: Any, rank: int, size: int, timeout: timedelta) -> tuple[Any, str]:
    """Return a Gloo group that has reached all ranks, and the word on which they have agreed (`agreed`).

    If any rank's connection is lost at the first use, all ranks make another group. `make` gets a prefix for keys.
    """
    for attempt in range(_ATTEMPTS):
        gloo, word, lost = make(f"gloo/{attempt}/"), "", None
        try:
            word = agreed(gloo, timeout)
        except RuntimeError as error:
            if not any(text in str(error) for text in _LOST):
                raise
            lost = error
        try:
            if _all_are_connected(PrefixStore(f"connected/{attempt}/", store), rank, size, not lost, timeout):
                return gloo, word
        except RuntimeError as error:
            raise lost or error from None
    raise lost or DistBackendError(f"Gloo lost a connection in each of {_ATTEMPTS} attempts to reach all ranks")


def _all_are_connected(store: Any, rank: int, size: int, is_connected: bool, timeout: timedelta) -> bool:
    """Return whether all ranks are connected, which rank 0 finds out.

    A rank that has lost a connection does not wait long for other ranks, since they may have died.
    """
    limit = timeout if is_connected else min(timeout, _VERDICT_TIMEOUT)
    store.set(str(rank), str(is_connected))
    if rank == 0:
        store.wait([str(each) for each in range(size)], limit)
        store.set("all", str(all(store.get(str(each)) == b"True" for each in range(size))))
    store.wait(["all"], limit)
    return bool(store.get("all") == b"True")


def agreed(gloo: Any, timeout: timedelta) -> str:
    """Return a random word of rank 0, which the ranks of a Gloo group have in common with no earlier run."""
    word = torch.tensor(secrets.randbits(63), device="cpu")
    options = BroadcastOptions()
    options.rootRank, options.timeout = 0, timeout
    gloo.broadcast([word], options).wait()
    return f"{int(word):x}"


@contextlib.contextmanager
def naming_an_earlier_start() -> Iterator[None]:
    """Add advice to an error if torchrun has restarted the ranks and given them the store of the earlier start."""
    try:
        yield
    except RuntimeError as error:
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        if restarts == "0" or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            raise
        raise DistBackendError(
            f"{error}; torchrun restarted the ranks (TORCHELASTIC_RESTART_COUNT={restarts}) with the old store, which "
            "still lists ranks that have ended: start torchrun with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
        ) from error


def wait_for_store_to_end(store: Any, timeout: float) -> None:
    """Wait until rank 0 has ended the default group's store, at most `timeout` seconds.

    With `env://` and `tcp://`, rank 0 runs the store and ends it when it destroys the group. A rank that makes its next
    group earlier would connect to the old store, and lose it while it waits there.
    """
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if not isinstance(store, TCPStore) or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return  # rank 0 does not run this store
    with contextlib.suppress(OSError), socket.create_connection((store.host, store.port), timeout) as link:
        link.recv(1)  # the store sends nothing without a request, so this returns when it ends the connection
