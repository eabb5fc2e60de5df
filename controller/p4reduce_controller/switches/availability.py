# SPDX-License-Identifier: Apache-2.0
"""The reason why something cannot be used, as one value, and the states of a switch that operators see."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

NOT_PRIMARY = "not primary"
"""The summary of the reason if another controller is the switch's primary."""


class SwitchState(Enum):
    """The state of a switch for operators, who know such states from Kubernetes nodes."""

    READY = "Ready"
    NOT_READY = "NotReady"
    """The controller is not connected to it, another controller is its primary, or all its ports are down."""
    UPLINK_DOWN = "UplinkDown"
    """Its link to its parent is down."""
    DRAINING = "Draining"
    """An operator drains or removes it. It takes no new jobs; its running jobs go on."""
    CORDONED = "Cordoned"
    """It takes no new jobs, and its last job has ended."""
    UNSCHEDULABLE = "Unschedulable"
    """It works, but new jobs would also need a switch that cannot be used."""


@dataclass(frozen=True)
class Unavailable:
    """The reason why something cannot be used.

    `summary`: the reason in a few words, where `reason` has the details.
    `brief`: it began a moment ago, so new jobs still count on the switch.
    """

    reason: str
    state: SwitchState = SwitchState.NOT_READY
    summary: str = ""
    brief: bool = False

    def __str__(self) -> str:
        return f"{self.summary}: {self.reason}" if self.summary else self.reason
