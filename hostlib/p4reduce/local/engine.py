# SPDX-License-Identifier: Apache-2.0
"""The C engine of ranks that share their host's memory: all ranks of a job, or those of each of its hosts."""

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
    """Reduces in the memory of the host that all ranks are on, and sends no packets."""

    def __init__(
        self,
        transport: Transport | SharedTransport,
        membership: Membership,
        *,
        switch: str,
        name: str = "p4reduce",
        timeout: float = _TIMEOUT_S,
    ) -> None:
        """Return when the ranks have come with which it shares memory. Raises CollectiveTimeout or P4ReduceError.

        timeout: seconds until then, up to 30. The other arguments are those of `NativeEngine`; a transport that is not
            used is only kept, and closed in the end.
        """
        self._timeout = min(timeout, _TIMEOUT_S)
        super().__init__(transport, membership, switch=switch, name=name)

    def _open(self, membership: Membership, switch: str, name: str, error: c.Error) -> int | None:
        del switch
        local = self._local_options(meeting(membership), name)
        handle: int | None = self._library.p4reduce_open_local(to_c(membership), local, error)
        return handle

    def _local_options(self, meeting: str, name: str) -> c.LocalOptions:
        return c.LocalOptions.make(
            copies=copies_wanted(),
            meeting=meeting.encode(),
            timeout=self._timeout,
            thread_name=name.encode()[:15],
        )


class SharingEngine(LocalEngine):
    """Reduces in the memory of its host what the leader there then sends: for memberships with `hosts`."""

    def _open(self, membership: Membership, switch: str, name: str, error: c.Error) -> int | None:
        local = self._local_options(host_meeting(membership), name)
        options = self._options(switch, name) if membership.leader == membership.rank else None
        handle: int | None = self._library.p4reduce_open_sharing(to_c(membership), options, local, error)
        return handle


def meeting(membership: Membership, some: str = "") -> str:
    """What the ranks of the job know alone, as the secret that is the job's does not follow from it. some: which of
    them meet, if not all do."""
    text = f"p4reduce {membership.job} {membership.generation} {membership.abort_secret}{some}"
    return f"p4reduce-{hashlib.sha256(text.encode()).hexdigest()[:40]}"


def host_meeting(membership: Membership) -> str:
    """Where the ranks of this rank's host meet."""
    return meeting(membership, f" host of {membership.leader}")
