# SPDX-License-Identifier: Apache-2.0
"""What carries the operations of a job over several hosts, each of which has one stream: the C engine."""

from __future__ import annotations

import hashlib

from p4reduce.fastpath import structures as c
from p4reduce.fastpath.engine import NativeEngine
from p4reduce.fastpath.library import to_exception
from p4reduce.fastpath.worker import to_c
from p4reduce.local.engine import MEETING_TIMEOUT_S, meeting
from p4reduce.protocol import Membership
from p4reduce.transport import SharedTransport, Transport


class SharingEngine(NativeEngine):
    """A `NativeEngine` whose stream is its host's. The host's leader sends it; the other ranks send no packets, but
    give the leader their values in shared memory. It returns when all ranks of the host have met."""

    def __init__(
        self,
        transport: Transport | SharedTransport,
        membership: Membership,
        *,
        switch: str,
        name: str = "p4reduce",
        timeout: float = MEETING_TIMEOUT_S,
    ) -> None:
        """membership: one with `hosts`. timeout: seconds until all ranks of this host must be there. The others are
        those of `NativeEngine`; the transport of a rank that does not lead is only kept, and closed in the end.
        Raises CollectiveTimeout or P4ReduceError."""
        self._meeting_timeout = timeout
        super().__init__(transport, membership, switch=switch, name=name)

    def _open(self, membership: Membership, switch: str, name: str) -> int:
        error = c.Error.make()
        text = f"{meeting(membership)} {membership.leader}"
        local = c.LocalOptions.make(
            meeting=f"p4reduce-{hashlib.sha256(text.encode()).hexdigest()[:40]}".encode(),
            timeout=self._meeting_timeout,
            thread_name=name.encode()[:15],
        )
        options = self._options(switch, name) if membership.leader == membership.rank else None
        handle: int | None = self._library.p4reduce_open_sharing(to_c(membership), options, local, error)
        if not handle:
            raise to_exception(error)
        return handle
