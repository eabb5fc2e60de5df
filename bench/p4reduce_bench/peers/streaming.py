# SPDX-License-Identifier: Apache-2.0
"""OmniReduce and SwitchML as modes of p4reduce: its workers and switch send the blocks that those systems send.

OmniReduce (Fei et al., SIGCOMM 2021), as published:

- Non-zero blocks are striped over streams, and each block names the next one of its stream. The aggregator tells all
  workers the least of these.
- A worker without the block sends a packet without values, as in OmniReduce's recovery from losses.
- The first block of each stream is sent even if it is zero, so a tensor of zeros takes a round of values, too.

Different: OmniReduce's aggregators are servers that add float32. A switch adds int32 words, whose exponent workers must
know first. So each slot begins with a packet that only announces; OmniReduce begins with the block itself. Packets have
p4reduce's four lanes, and zeros as room for the answer (`MAX_GROWTH`).

SwitchML (Sapio et al., NSDI 2021), as published:

- Every block is sent, in order, as int32 words.
- Workers agree on the exponent one round ahead, and on the first one with a packet of its own.
- A slot has two halves, and its next packet is sent when its result has come.

Different: the sizes of packets and the header.

In both modes, packet lengths, pacing and retransmission are p4reduce's. So is the hosts' computation: a scan of the
tensor, which SwitchML needs only for its exponents.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from p4reduce.collectives import reductions
from p4reduce.collectives.plan import Collective, Group, Plan
from p4reduce.protocol.operation import Zeros
from p4reduce.tensors.spec import describe

ZEROS: Mapping[str, Zeros] = {"omnireduce": "first", "switchml": "sent"}
"""The treatment of a worker's blocks of zeros in each system."""


def allreduce(group: Group, tensor: Any, system: str) -> Plan[Any]:
    """Return the sum, in place of a float32 or int32 tensor."""
    plan = reductions.allreduce(group, tensor, describe(tensor), Collective(wire="int32"))
    assert plan.operation is not None
    plan.operation.zeros = ZEROS[system]
    return plan
