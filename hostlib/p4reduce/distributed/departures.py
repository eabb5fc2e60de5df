# SPDX-License-Identifier: Apache-2.0
"""Departures from jobs in the background, since other ranks may leave later and in another order."""

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
    """A rank's departure from a job."""

    def __init__(self, running: RunningJob, *, well: bool) -> None:
        self._running, self._well = running, well
        self.heard = threading.Event()
        """Set when the controller knows that this rank leaves, so that the job no longer needs this process."""
        self.ended = threading.Event()

    def run(self) -> None:
        """Leave, and return when all ranks have left or will not."""
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
        """Wait for the controller to know of the departure, and no longer for the other ranks."""
        self.heard.wait(_ANSWER_TIMEOUT_S)
        self._running.session.close()
        self.ended.wait(_ANSWER_TIMEOUT_S)


def depart(communicator: Communicator, *, well: bool) -> None:
    """Leave the communicator's job, and return when the controller knows.

    well: with False, the job ends for the other ranks at once.
    A signal handler may call this, so it takes no lock that the interrupted thread may hold, except a reentrant one.
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
    """Return whether departures have not ended, so that the slots of their jobs are not free yet."""
    with _lock:
        return bool(_departures)


def wait(timeout: float) -> None:
    """Wait until all departures of now have ended, at most `timeout` seconds."""
    deadline = time.monotonic() + timeout
    with _lock:
        departures = list(_departures)
    for departure in departures:
        departure.ended.wait(max(0.0, deadline - time.monotonic()))


@atexit.register
def _at_exit() -> None:
    for departure in list(_departures):
        departure.cut_short()
