# SPDX-License-Identifier: Apache-2.0
"""OmniReduce and SwitchML as modes of ours: our workers and our switch, which send the blocks that those systems send.

OmniReduce (Fei et al., SIGCOMM 2021). Faithful: blocks that are not zero, dealt to streams, of which each block names
the next; the aggregator tells all workers the least of these, and who has nothing of it sends a packet without values,
as in its recovery from losses; the first block of each stream is sent even where it is zero, so that a tensor of zeros
takes a round of values, too. Not here: its aggregators are servers that add float32; a switch adds int32 words, whose
exponent workers must know, so a packet of each slot goes ahead that only announces, where OmniReduce begins with the
block itself. Packets have our four lanes, and zeros where the answer needs room (`MAX_GROWTH`).

SwitchML (Sapio et al., NSDI 2021). Faithful: every block is sent, in order, as int32 words with an exponent that
workers agree on a round ahead, the first one's by a packet of its own; a slot has two halves, and its next packet goes
when its result has come. Not here: its sizes of packets and its header.

How long packets are, how many are under way and when one is sent again is ours in both, and so is what hosts compute:
a scan of the tensor, which SwitchML needs for its exponents alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from p4reduce.collectives import reductions
from p4reduce.collectives.plan import Collective, Group, Plan
from p4reduce.protocol.operation import Zeros
from p4reduce.tensors.spec import describe

ZEROS: Mapping[str, Zeros] = {"omnireduce": "first", "switchml": "sent"}
"""What becomes of a worker's blocks of zeros in each system."""


def allreduce(group: Group, tensor: Any, system: str) -> Plan[Any]:
    """Return the sum, in place of a float32 or int32 tensor."""
    plan = reductions.allreduce(group, tensor, describe(tensor), Collective(wire="int32"))
    assert plan.operation is not None
    plan.operation.zeros = ZEROS[system]
    return plan
