# SPDX-License-Identifier: Apache-2.0
"""A check, during the whole run, that tenants stay within their quotas and that no two jobs share a slot."""

from __future__ import annotations

import threading
from collections import Counter

from p4reduce.control import jobs_pb2 as pb
from tests.chaos.site import Controllers

EVERY_S = 0.2


class Watch:
    """A thread that checks the status from the beginning of the block to its end. `found`: the violations."""

    def __init__(self, controllers: Controllers) -> None:
        self.found: list[str] = []
        self.samples = 0
        self._controllers = controllers
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(EVERY_S):
            if (found := self._controllers.serving()) is not None:
                self.samples += 1
                self.found += [one for one in wrong_with(found[1]) if one not in self.found]


def wrong_with(reply: pb.StatusReply) -> list[str]:
    """Return the quotas that are exceeded, the slots that two jobs have, and those used slots that no job has."""
    found = []
    for tenant in reply.tenants:
        for name, has, most in (
            ("jobs", tenant.jobs, tenant.most_jobs if tenant.HasField("most_jobs") else tenant.jobs),
            ("slots", tenant.slots, tenant.most_slots if tenant.HasField("most_slots") else tenant.slots),
        ):
            if has > most:
                found.append(f"tenant {tenant.name} has {has} {name}, and may have {most}")
    used: Counter[int] = Counter()
    taken: dict[tuple[int, int], str] = {}
    for job in reply.jobs:
        for pool in job.pools:
            used[pool.switch] += pool.count
            for slot in range(pool.first, pool.first + pool.count):
                other = taken.setdefault((pool.switch, slot), job.name)
                if other != job.name:
                    found.append(f"slot {slot} of switch {pool.switch} is of both {other} and {job.name}")
    for at, switch in enumerate(reply.switches):
        if switch.slots_used < used[at]:
            found.append(f"{switch.slots_used} slots of the switch {switch.name} are used, and jobs have {used[at]}")
    return found
