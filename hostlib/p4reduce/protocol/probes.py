# SPDX-License-Identifier: Apache-2.0
"""HELLOs by which a rank shows the controller, through the switch, where it is and how long packets may be on the way.

Full ones are as long as the job's longest packets. Short ones come where these do not, and say in `seq` that there are
full ones, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from p4reduce.protocol.constants import NO_KEY, SHORT_HELLO, Op
from p4reduce.protocol.membership import Membership
from p4reduce.protocol.packet import Codec, Packet


def full_hello(membership: Membership, nonce: int) -> bytes:
    """With zeros for the values of all lanes."""
    every = (1 << membership.lanes) - 1
    values = np.zeros((membership.lanes, membership.block_size), np.int32)
    return _hello(membership, nonce, active=every, present=every, values=values)


def short_hello(membership: Membership, nonce: int) -> bytes:
    """Without values."""
    return _hello(membership, nonce, seq=SHORT_HELLO)


def _hello(membership: Membership, nonce: int, **more: Any) -> bytes:
    m = membership
    keys = (nonce & 0xFFFFFFFF,) + (NO_KEY,) * (m.lanes - 1)
    packet = Packet(Op.HELLO, m.job, m.generation, m.rank, fingerprint=nonce >> 32, keys=keys, **more)
    return Codec(m.lanes, m.block_size).encode(packet)
