# SPDX-License-Identifier: Apache-2.0
"""What went wrong between the controller and one switch, in numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class ControlCounts:
    """rpc_errors: calls that failed, by gRPC's code. cpu_drops: packets between the switch's CPU port and the
    controller that came to nothing, by why."""

    rpc_errors: Counter[str] = field(default_factory=Counter)
    cpu_drops: Counter[str] = field(default_factory=Counter)
