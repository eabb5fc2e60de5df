# SPDX-License-Identifier: Apache-2.0
"""One thread that sends reports to controllers, for all sessions of the process: a rank has one for each group."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

_IDLE_S = 1.0  # the thread ends when it has had no sessions for this time

Report = Callable[[], float | None]
"""Sends one report, and returns the seconds until the next call; None for no more calls."""


class ReportSchedule:
    """A thread that calls reports when they are due, one after the other. Any thread may call its methods."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # _changed guards the fields below.
        self._due: dict[Report, float] = {}
        self._running = False

    def add(self, report: Report, delay: float) -> None:
        """Call the report after `delay` seconds, and then as often as it asks for."""
        with self._changed:
            self._due[report] = time.monotonic() + delay
            self._changed.notify()
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="p4reduce-report", daemon=True).start()

    def remove(self, report: Report) -> None:
        """Call the report no more; a call that has begun may still go on."""
        with self._changed:
            self._due.pop(report, None)
            self._changed.notify()

    def _run(self) -> None:
        while (report := self._next()) is not None:
            try:
                delay = report()
            except Exception:
                log.exception("a report to the controller failed")
                delay = None
            with self._changed:
                if delay is None:
                    self._due.pop(report, None)
                elif report in self._due:
                    self._due[report] = time.monotonic() + delay
            del report  # it refers to a session

    def _next(self) -> Report | None:
        """Wait until a report is due, and return it; None if there has been none for long, so that the thread ends."""
        with self._changed:
            while True:
                if not self._due:
                    if not self._changed.wait_for(lambda: self._due, _IDLE_S):
                        self._running = False
                        return None
                    continue
                report = min(self._due, key=self._due.__getitem__)
                left = self._due[report] - time.monotonic()
                if left <= 0:
                    return report
                self._changed.wait(left)


schedule = ReportSchedule()


def _forget() -> None:
    """Start anew in a forked process, which has neither the thread nor the sessions."""
    global schedule
    schedule = ReportSchedule()


os.register_at_fork(after_in_child=_forget)
