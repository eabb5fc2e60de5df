# SPDX-License-Identifier: Apache-2.0
"""Why something cannot be used, as one value, and the states of a switch that operators see."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class SwitchState(Enum):
    READY = "Ready"
    NOT_READY = "NotReady"
    """It is not connected, is another controller's, or none of its ports is up."""
    UPLINK_DOWN = "UplinkDown"
    """It does not reach its parent."""
    DRAINING = "Draining"
    """An operator drains or removes it: it takes no new jobs, and those that it has run on."""
    CORDONED = "Cordoned"
    """It takes no new jobs, and has none any more."""
    UNSCHEDULABLE = "Unschedulable"
    """Nothing is wrong with it, but new jobs would also need a switch that cannot be used."""


@dataclass(frozen=True)
class Unavailable:
    """`summary`: the reason in a few words, where `reason` has the details. `brief`: it began a moment ago, so new jobs
    still count on the switch."""

    reason: str
    state: SwitchState = SwitchState.NOT_READY
    summary: str = ""
    brief: bool = False

    def __str__(self) -> str:
        return f"{self.summary}: {self.reason}" if self.summary else self.reason
