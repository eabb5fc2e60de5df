# SPDX-License-Identifier: Apache-2.0
"""Process groups that are made again, by ranks that torchrun has restarted or after `destroy_process_group`."""

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

# A new Gloo group now and then loses a connection that it has just made, "reset by peer", where a process makes many
# groups one after the other.
_LOST = ("Connection reset by peer", "Connection closed by peer")
_ATTEMPTS = 3
_VERDICT_TIMEOUT = timedelta(seconds=10)


def connect(make: Callable[[str], Any], store: Any, rank: int, size: int, timeout: timedelta) -> tuple[Any, str]:
    """Return a Gloo group that has reached all ranks, and the word that they have agreed on.

    If any rank's connection is lost at the first use, all ranks make another group. `make` gets a prefix of keys.
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
    """What rank 0 has found. A rank that has lost a connection does not wait long for others, which may have died."""
    limit = timeout if is_connected else min(timeout, _VERDICT_TIMEOUT)
    store.set(str(rank), str(is_connected))
    if rank == 0:
        store.wait([str(each) for each in range(size)], limit)
        store.set("all", str(all(store.get(str(each)) == b"True" for each in range(size))))
    store.wait(["all"], limit)
    return bool(store.get("all") == b"True")


def agreed(gloo: Any, timeout: timedelta) -> str:
    """Return a word that the ranks of a Gloo group have in common, and those of no earlier start: rank 0 makes it
    up."""
    word = torch.tensor(secrets.randbits(63), device="cpu")
    options = BroadcastOptions()
    options.rootRank, options.timeout = 0, timeout
    gloo.broadcast([word], options).wait()
    return f"{int(word):x}"


@contextlib.contextmanager
def naming_an_earlier_start() -> Iterator[None]:
    """Says what to do where torchrun, which has restarted the ranks, gives them the store that they had before."""
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
    """Return when rank 0 has ended the default group's store, or after so many seconds.

    With `env://` and `tcp://` rank 0 keeps the store, and ends it when it destroys the group. A rank that makes its
    next group earlier would reach the old store, and lose it while it waits there.
    """
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if not isinstance(store, TCPStore) or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return  # it is another process's, or none that rank 0 alone has
    with contextlib.suppress(OSError), socket.create_connection((store.host, store.port), timeout) as link:
        link.recv(1)  # the store says nothing, as it is asked nothing, until it ends the connection
