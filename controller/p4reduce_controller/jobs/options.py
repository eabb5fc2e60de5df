# SPDX-License-Identifier: Apache-2.0
"""Settings that hold for all jobs."""

from dataclasses import dataclass

from p4reduce_controller.jobs.deadlines import LEAVE_GRACE, REJOIN_TIME


@dataclass(frozen=True)
class JobOptions:
    """`returns`: ranks are given a key, with which they can come back to a later controller that restores the jobs,
    within `rejoin_time` seconds. `leave_grace`: seconds from the first rank's leaving until all must have left.
    `moves_slots`: jobs that run may get other slots, and fewer where they hardly use them, when jobs wait for room.
    """

    rejoin_time: float = REJOIN_TIME
    leave_grace: float = LEAVE_GRACE
    returns: bool = False
    moves_slots: bool = True
