# SPDX-License-Identifier: Apache-2.0
"""What carries the operations of a job whose ranks are all on one host: the C engine, in their memory."""

from __future__ import annotations

import ctypes
import hashlib

from p4reduce.fastpath import structures as c
from p4reduce.fastpath.engine import NativeEngine
from p4reduce.fastpath.library import to_exception
from p4reduce.fastpath.worker import to_c
from p4reduce.local.host import copies_wanted
from p4reduce.protocol import Membership
from p4reduce.transport import SharedTransport, Transport

MEETING_TIMEOUT_S = 30.0


class MeetingEngine(NativeEngine):
    """One that starts when those have come with which it shares memory."""

    def __init__(
        self,
        transport: Transport | SharedTransport,
        membership: Membership,
        *,
        switch: str,
        name: str = "p4reduce",
        timeout: float = MEETING_TIMEOUT_S,
    ) -> None:
        """timeout: seconds until all of them must be there. The other arguments are those of `NativeEngine`; a
        transport that is not used is only kept, and closed in the end. Raises CollectiveTimeout or P4ReduceError."""
        self._meeting_timeout = timeout
        super().__init__(transport, membership, switch=switch, name=name)

    def _local_options(self, meeting: str, name: str) -> c.LocalOptions:
        return c.LocalOptions.make(
            copies=copies_wanted(),
            meeting=meeting.encode(),
            timeout=self._meeting_timeout,
            thread_name=name.encode()[:15],
        )


class LocalEngine(MeetingEngine):
    """One that sends no packets, but reduces in the memory of the host that all ranks are on."""

    def _open(self, membership: Membership, switch: str, name: str) -> int:
        del switch
        error = c.Error.make()
        options = self._local_options(meeting(membership), name)
        handle: int | None = self._library.p4reduce_open_local(to_c(membership), ctypes.byref(options), error)
        if not handle:
            raise to_exception(error)
        return handle


def meeting(membership: Membership, some: str = "") -> str:
    """What the ranks of the job know alone, as the secret that is the job's does not follow from it. some: which of
    them meet, if not all do."""
    text = f"p4reduce {membership.job} {membership.generation} {membership.abort_secret}{some}"
    return f"p4reduce-{hashlib.sha256(text.encode()).hexdigest()[:40]}"
