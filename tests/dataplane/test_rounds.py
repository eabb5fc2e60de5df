# SPDX-License-Identifier: Apache-2.0
"""What a slot half makes of each packet: every row of the protocol's table of cases, and rounds from first to last."""

from __future__ import annotations

import numpy as np
import pytest

from .frames import NO_KEY
from .jobs import Job, sums, values_of
from .switch import Switch


def test_a_newer_round_starts_over_and_is_not_answered_yet(switch: Switch) -> None:
    job = Job(switch, 2).start()
    switch.exchange(job.data(0, 2, values=values_of(1, switch, [0]))).expect()
    assert switch.counts() == {"started": 1, "reset": 4}


def test_the_last_worker_completes_and_everyone_gets_the_sum(switch: Switch) -> None:
    job = Job(switch, 3).start()
    parts = [values_of(rank, switch, range(switch.lanes)) for rank in range(3)]
    packets = [job.packet(rank, 2, values=parts[rank]) for rank in range(3)]
    switch.exchange(job.sent(packets[2])).expect()
    switch.exchange(job.sent(packets[0])).expect()
    result = job.result(packets[1], keys=packets[1].keys, values=sums(switch, range(switch.lanes), *parts))
    switch.exchange(job.sent(packets[1])).expect(job.to_all(result))
    assert switch.counts() == {"started": 1, "added": 2, "completed": 1, "reset": 4}
