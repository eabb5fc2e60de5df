# SPDX-License-Identifier: Apache-2.0
"""Several model switches that share a job's slots, and the mapping of slot numbers to them."""

from __future__ import annotations

from dataclasses import replace

from p4reduce.protocol import Membership
from p4reduce.protocol.aggregators import from_aggregator, slots_at_each, to_aggregator
from p4reduce.protocol.constants import Outcome
from tests.support.protocol.model_switch import ModelSwitch


class DealtSwitch(ModelSwitch):
    """Several switches that take the place of one."""

    def __init__(self, membership: Membership, aggregators: int) -> None:
        super().__init__(membership)
        each = replace(membership, slots=slots_at_each(membership.slots, aggregators))
        self.switches = [ModelSwitch(each) for _ in range(aggregators)]
        self.moved = False
        """Whether the job's slots have changed, so that late packets may name former ones."""

    def receive(self, sender: int, payload: bytes) -> tuple[tuple[int, ...], bytes] | None:
        index, half = to_aggregator(int.from_bytes(payload[8:10], "big"), len(self.switches))
        answer = self.switches[index].receive(sender, with_half(payload, half))
        self.outcomes = {
            outcome: sum(switch.outcomes[outcome] for switch in self.switches) for outcome in self.switches[0].outcomes
        }
        assert self.moved or self.outcomes[Outcome.BAD_SLOT] == 0, "a slot beyond the pool"
        if answer is None:
            return None
        receivers, reply = answer
        back = from_aggregator(int.from_bytes(reply[8:10], "big"), index, len(self.switches))
        return receivers, with_half(reply, back)


def with_half(payload: bytes, half: int) -> bytes:
    return payload[:8] + half.to_bytes(2, "big") + payload[10:]


def move(switch: ModelSwitch, slots: int, first_seq: int) -> None:
    """Give the job other slots, as the controller does.

    Their halves are reset, but still contain the sums of another job.
    """
    switches = [switch]
    if isinstance(switch, DealtSwitch):
        switches, switch.moved = switch.switches, True
    for one in switches:
        one.halves.clear()
        for half in range(2 * slots_at_each(slots, len(switches))):
            one.reset(half, (first_seq - 2 + (half & 1)) % 2**32)
            one.halves[half].sums[...] = 12345
