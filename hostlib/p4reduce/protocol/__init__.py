# SPDX-License-Identifier: Apache-2.0
"""The aggregation protocol without I/O: packets and a clock go in, packets and results come out.

Read `worker` for the state machine, `packet` for the wire, `blocks` for what is sent, `numbers` for what is added.
"""

from p4reduce.protocol.membership import Membership
from p4reduce.protocol.operation import Operation
from p4reduce.protocol.stats import Stats
from p4reduce.protocol.timing import Timing
from p4reduce.protocol.worker import Worker

__all__ = ["Membership", "Operation", "Stats", "Timing", "Worker"]
