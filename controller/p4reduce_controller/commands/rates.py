# SPDX-License-Identifier: Apache-2.0
"""What has changed from one status to the next."""

from __future__ import annotations

from p4reduce.control import jobs_pb2 as pb


class Rates:
    """Packets a second, of two looks at a controller."""

    def __init__(self, status: pb.StatusReply, now: float) -> None:
        """now: seconds on any clock that does not jump."""
        self.status = status
        self.seconds = 0.0
        self.by_switch: dict[str, dict[str, float]] = {}
        self._at = now

    def update(self, status: pb.StatusReply, now: float) -> None:
        """A counter that has fallen was started again with its switch, and counts from 0."""
        self.by_switch = {}
        self.seconds = max(1e-6, now - self._at)
        before = {switch.name: dict(switch.outcomes) for switch in self.status.switches}
        for switch in status.switches:
            then = before.get(switch.name, {})
            self.by_switch[switch.name] = {
                what: (count - then.get(what, 0) if count >= then.get(what, 0) else count) / self.seconds
                for what, count in sorted(switch.outcomes.items())
            }
        self.status, self._at = status, now
