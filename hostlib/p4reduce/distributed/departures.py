# SPDX-License-Identifier: Apache-2.0
"""Leaving jobs in the background: the other ranks may come to it later, and in another order."""

from __future__ import annotations

import atexit
import logging
import threading
import time

from p4reduce.api.communicator import Communicator
from p4reduce.join.joining import RunningJob

log = logging.getLogger(__name__)

_ANSWER_TIMEOUT_S = 5.0  # the controller answers within a tenth of a second

_lock = threading.RLock()
_departures: set[Departure] = set()


class Departure:
    """A rank's way out of a job."""

    def __init__(self, running: RunningJob, *, well: bool) -> None:
        self._running, self._well = running, well
        self.heard = threading.Event()
        """The job can do without this process."""
        self.ended = threading.Event()

    def run(self) -> None:
        """Until all ranks have left, or will not."""
        try:
            self._running.leave(well=self._well, on_heard=self.heard.set)
        except Exception as error:
            log.warning("left a job: %s", error)
        finally:
            self.heard.set()
            self.ended.set()
            with _lock:
                _departures.discard(self)

    def cut_short(self) -> None:
        """Wait for nobody but the controller."""
        self.heard.wait(_ANSWER_TIMEOUT_S)
        self._running.session.close()
        self.ended.wait(_ANSWER_TIMEOUT_S)


def depart(communicator: Communicator, *, well: bool) -> None:
    """Leaves its job, and returns when the controller knows. well: False ends it for the other ranks at once.

    Takes no lock that the thread which it interrupts may have: a signal's handler may call it.
    """
    running = communicator.detach()
    if running is None:
        return
    departure = Departure(running, well=well)
    with _lock:
        _departures.add(departure)
    try:
        threading.Thread(target=departure.run, name="p4reduce leaves", daemon=True).start()
    except RuntimeError:  # the interpreter exits
        departure.run()
    departure.heard.wait(_ANSWER_TIMEOUT_S)


def under_way() -> bool:
    """Whether jobs are being left, whose slots are not free yet."""
    with _lock:
        return bool(_departures)


def wait(timeout: float) -> None:
    """Until all jobs are left that are being left now."""
    deadline = time.monotonic() + timeout
    with _lock:
        departures = list(_departures)
    for departure in departures:
        departure.ended.wait(max(0.0, deadline - time.monotonic()))


@atexit.register
def _at_exit() -> None:
    for departure in list(_departures):
        departure.cut_short()
