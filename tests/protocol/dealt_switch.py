# SPDX-License-Identifier: Apache-2.0
"""Several model switches that share a job's slots, and the mapping on the way to them and back."""

from __future__ import annotations

from dataclasses import replace

from model_switch import ModelSwitch

from p4reduce.protocol.aggregators import from_aggregator, slots_at_each, to_aggregator
from p4reduce.protocol.constants import Outcome
from p4reduce.protocol.membership import Membership


class DealtSwitch(ModelSwitch):
    """Put in place of one switch."""

    def __init__(self, membership: Membership, aggregators: int) -> None:
        super().__init__(membership)
        each = replace(membership, slots=slots_at_each(membership.slots, aggregators))
        self.switches = [ModelSwitch(each) for _ in range(aggregators)]
        self.moved = False
        """The job has had other slots, for which packets may be late."""

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
