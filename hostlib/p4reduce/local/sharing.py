# SPDX-License-Identifier: Apache-2.0
"""What carries the operations of a job over several hosts, each of which has one stream: the C engine."""

from __future__ import annotations

from p4reduce.fastpath import structures as c
from p4reduce.fastpath.library import to_exception
from p4reduce.fastpath.worker import to_c
from p4reduce.local.engine import MeetingEngine, meeting
from p4reduce.protocol import Membership


def host_meeting(membership: Membership) -> str:
    """Where the ranks of this rank's host meet."""
    return meeting(membership, f" host of {membership.leader}")


class SharingEngine(MeetingEngine):
    """One whose stream is its host's. The host's leader sends it; the other ranks send no packets, but give the leader
    their values in shared memory. It is for memberships with `hosts`."""

    def _open(self, membership: Membership, switch: str, name: str) -> int:
        error = c.Error.make()
        local = self._local_options(host_meeting(membership), name)
        options = self._options(switch, name) if membership.leader == membership.rank else None
        handle: int | None = self._library.p4reduce_open_sharing(to_c(membership), options, local, error)
        if not handle:
            raise to_exception(error)
        return handle
