# SPDX-License-Identifier: Apache-2.0
"""Faults of controllers and etcd, drawn at random, one after the other."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.site import LEASE_S, Cluster, Controllers

PAUSE_S = (3.0, 7.0)  # between two of them
STAND_S = (LEASE_S + 1.0, LEASE_S + 3.0)  # that who serves is stopped for: longer than its lease
STEPS = {
    "kill the one that serves": 5,
    "end the one that serves": 2,
    "stop the one that serves": 2,
    "kill the standby": 2,
    "kill a member of etcd": 3,
    "stop a member of etcd": 2,
    "stop two members of etcd": 1,
}


@dataclass
class Fault:
    what: str
    at: float
    until: float = 0.0
    served_after: float | None = None
    """Seconds until another one served, where the one that did was taken away."""


@dataclass
class Faults:
    """A thread that causes faults from `start` to `stop`. `failure`: the exception that ended it.

    The thread stays until this process ends, since the processes that it has started would end with it.
    """

    controllers: Controllers
    cluster: Cluster
    rng: random.Random
    note: Callable[[str], object]
    done: list[Fault] = field(default_factory=list)
    failure: Exception | None = None

    def start(self) -> None:
        self._stopping, self._stopped = threading.Event(), threading.Event()
        threading.Thread(target=self._run, name="faults", daemon=True).start()

    def stop(self) -> None:
        """Stop, and return when the last fault has been mended."""
        self._stopping.set()
        self._stopped.wait()

    def described(self) -> list[dict[str, Any]]:
        return [vars(one) for one in self.done]

    def _run(self) -> None:
        try:
            while not self._stopping.wait(self.rng.uniform(*PAUSE_S)):
                self._one(self.rng.choices(list(STEPS), list(STEPS.values()))[0])
        except Exception as error:
            self.failure = error
        self._stopped.set()
        threading.Event().wait()

    def _one(self, what: str) -> None:
        number, _ = self.controllers.wait_until_serving()
        fault = Fault(what, time.monotonic())
        self.done.append(fault)
        self.note(what)
        if "serves" in what:
            self._take_away(fault, number)
        elif "standby" in what:
            self.controllers.signal(1 - number, signal.SIGKILL)
            self._pause()
            self.controllers.start(1 - number)
        else:
            members = self.rng.sample(range(len(self.cluster.members)), 2 if "two" in what else 1)
            self._disturb_etcd(what, members)
        fault.until = time.monotonic()
        if what.startswith(("kill", "end")):
            time.sleep(2.0)  # until that which was begun again is there

    def _take_away(self, fault: Fault, number: int) -> None:
        how = {"kill": signal.SIGKILL, "end": signal.SIGTERM, "stop": signal.SIGSTOP}[fault.what.split()[0]]
        self.controllers.signal(number, how)
        back = self.rng.uniform(*STAND_S) if how is signal.SIGSTOP else 1.0
        while (fault.served_after is None or time.monotonic() < fault.at + back) and time.monotonic() < fault.at + 30:
            if fault.served_after is None and self.controllers.status(1 - number) is not None:
                fault.served_after = time.monotonic() - fault.at
            time.sleep(0.02)
        if how is signal.SIGSTOP:
            self.controllers.signal(number, signal.SIGCONT)
        else:
            self.controllers.start(number)

    def _disturb_etcd(self, what: str, members: list[int]) -> None:
        kills = what.startswith("kill")
        for number in members:
            self.cluster.members[number].process.send_signal(signal.SIGKILL if kills else signal.SIGSTOP)
        self._pause()
        for number in members:
            if kills:
                self.cluster.begin_again(number)
            else:
                self.cluster.members[number].process.send_signal(signal.SIGCONT)

    def _pause(self) -> None:
        time.sleep(self.rng.uniform(1.0, 3.0))
