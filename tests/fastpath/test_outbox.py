# SPDX-License-Identifier: Apache-2.0
"""The outbox of the C worker, where packets wait while the kernel takes no more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from p4reduce.protocol import Membership, Operation
from p4reduce.protocol.constants import Op
from p4reduce.protocol.packet import Codec
from tests.support.protocol.c_worker import Worker

SLOTS = 48
MEMBER = Membership(job=1, generation=1, rank=0, world_size=1, slots=SLOTS, lanes=1, block_size=1, first_seq=0)


def test_a_copy_whose_result_has_come_does_not_leave() -> None:
    """The next round's packet may wait for the scan, and so would leave half made."""
    values = np.zeros(SLOTS * 4000, np.float32)
    values[:SLOTS] = values[-SLOTS:] = 1
    worker, codec = Worker(MEMBER), Codec(1, 1)
    worker.submit(Operation(values), 0.0)
    sent = worker.take_packets()
    while len(sent) < SLOTS:
        worker.tick(deadline := worker.next_deadline() or 0.0)
        sent += worker.take_packets()
    worker.tick(deadline + 1)  # probes the oldest packets, which stay in the outbox
    for payload in sent[:3]:
        packet = codec.decode(payload)
        worker.receive(codec.encode(replace(packet, op=Op.RESULT)), deadline + 1)
    assert [codec.decode(payload).seq for payload in worker.take_packets()] == []
    assert worker.stats.retransmissions == 0
