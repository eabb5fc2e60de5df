# SPDX-License-Identifier: Apache-2.0
"""The C engine for ranks that share their host's memory: all ranks of a job, or those of each of its hosts."""

from __future__ import annotations

import hashlib

from p4reduce.fastpath import structures as c
from p4reduce.fastpath.engine import NativeEngine
from p4reduce.fastpath.library import to_c
from p4reduce.local.host import copies_wanted
from p4reduce.protocol import Membership
from p4reduce.transport import SharedTransport, Transport

_TIMEOUT_S = 30.0


class LocalEngine(NativeEngine):
    """The engine of a job whose ranks are all on one host: reduces in shared memory and sends no packets."""

    def __init__(
        self,
        transport: Transport | SharedTransport,
        membership: Membership,
        *,
        switch: str,
        name: str = "p4reduce",
        timeout: float = _TIMEOUT_S,
    ) -> None:
        """Return when all ranks that share memory with this one have joined the rendezvous.

        timeout: seconds to wait for them, at most 30. The other arguments are those of `NativeEngine`. A transport that
            is not used is only kept, and closed in the end.
        Raises CollectiveTimeout or P4ReduceError.
        """
        self._timeout = min(timeout, _TIMEOUT_S)
        super().__init__(transport, membership, switch=switch, name=name)

    def _open(self, membership: Membership, switch: str, name: str, error: c.Error) -> int | None:
        del switch
        local = self._local_options(rendezvous_name(membership), name)
        handle: int | None = self._library.p4reduce_open_local(to_c(membership), local, error)
        return handle

    def _local_options(self, rendezvous: str, name: str) -> c.LocalOptions:
        return c.LocalOptions.make(
            copies=copies_wanted(),
            rendezvous=rendezvous.encode(),
            timeout=self._timeout,
            thread_name=name.encode()[:15],
        )


class SharingEngine(LocalEngine):
    """The engine of a job with several hosts (`hosts`): each host reduces in its memory, and its leader sends."""

    def _open(self, membership: Membership, switch: str, name: str, error: c.Error) -> int | None:
        local = self._local_options(host_rendezvous_name(membership), name)
        options = self._options(switch, name) if membership.leader == membership.rank else None
        handle: int | None = self._library.p4reduce_open_sharing(to_c(membership), options, local, error)
        return handle


def rendezvous_name(membership: Membership, ranks: str = "") -> str:
    """Return a name for the rendezvous that only the job's ranks know; it does not reveal the job's secret.

    ranks: names the ranks that meet, if not all do.
    """
    text = f"p4reduce {membership.job} {membership.generation} {membership.abort_secret}{ranks}"
    return f"p4reduce-{hashlib.sha256(text.encode()).hexdigest()[:40]}"


def host_rendezvous_name(membership: Membership) -> str:
    """Return the name of the rendezvous of this host's ranks."""
    return rendezvous_name(membership, f" host of {membership.leader}")
