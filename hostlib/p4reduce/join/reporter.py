# SPDX-License-Identifier: Apache-2.0
"""A rank's reports to the controller."""

from __future__ import annotations

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.messages import MOST_AWAITED
from p4reduce.engine.engine import Engine

_COUNTS = (
    "operations",
    "rounds",
    "retransmissions",
    "slowdowns",
    "packets_sent",
    "packets_received",
    "bytes_sent",
    "bytes_received",
)


class Reporter:
    """The maker of a rank's reports, from its engine's statistics. One thread calls `report` periodically."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._operations = -1  # number that had ended at the previous report
        self._stuck_since: float | None = None

    def report(self, now: float) -> pb.Report:
        """Return a report of the engine's statistics so far. now: seconds of any monotonic clock."""
        engine = self._engine
        stats = engine.stats
        counts = {name: getattr(stats, name) for name in _COUNTS}
        report = pb.Report(busy_s=engine.seconds, most_slots=engine.take_most_slots(), **counts)
        ended, self._operations = stats.operations != self._operations, stats.operations
        if ended or not engine.busy:
            self._stuck_since = now if engine.busy else None
        elif self._stuck_since is None:
            self._stuck_since = now
        else:
            report.stuck_s = now - self._stuck_since
            report.awaited.extend(engine.awaited()[:MOST_AWAITED])
        return report
