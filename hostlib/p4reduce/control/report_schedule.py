# SPDX-License-Identifier: Apache-2.0
"""One thread that tells controllers what ranks have done, for all sessions of the process: groups have many."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

_IDLE_S = 1.0  # without sessions, after which the thread ends

Report = Callable[[], float | None]
"""Reports once, and returns after how many seconds again; None to be asked no more."""


class ReportSchedule:
    """Calls reports when they are due, one after the other. Its methods are for any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # Guarded by _changed.
        self._due: dict[Report, float] = {}
        self._running = False

    def add(self, report: Report, delay: float) -> None:
        """Call it in so many seconds."""
        with self._changed:
            self._due[report] = time.monotonic() + delay
            self._changed.notify()
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="p4reduce-report", daemon=True).start()

    def remove(self, report: Report) -> None:
        """Call it no more, but for a call that is under way."""
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
            del report  # which has a session

    def _next(self) -> Report | None:
        """Return the one that is due first, when it is; None, and the thread is to end, where there has been none for
        long."""
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
    """In a forked process, which has neither the thread nor the sessions."""
    global schedule
    schedule = ReportSchedule()


os.register_at_fork(after_in_child=_forget)
