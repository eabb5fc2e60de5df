# SPDX-License-Identifier: Apache-2.0
"""P4Runtime election ids of the controller. The client with the highest id is a switch's primary."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from p4reduce_controller.switches.availability import Unavailable

DEFAULT_RANK = 1 << 32  # p4runtime-shell has 1 by default
HIGHEST_RANK = (1 << 64) - 1
_HIGHEST = (1 << 128) - 1
_TERMS = 16  # bits that count the connections of a term, each with a higher id than the one before


@dataclass(frozen=True)
class Election:
    """The rules by which a controller chooses its election ids.

    `rank`: the high 64 bits of its ids.
    `take_over`: whether an existing primary must give way, once.
    `term`: the number of this leadership, if controllers elect a leader; it rises with each leader.
    `reason_to_wait`: returns the reason why this controller must not become primary now; None if there is none.
    """

    rank: int = DEFAULT_RANK
    take_over: bool = False
    term: int = 0
    reason_to_wait: Callable[[], Unavailable | None] = lambda: None

    def id_above(self, highest: int) -> int:
        """Return a new id of this controller that is higher than `highest`.

        The low 64 bits are the time, so that ids rise. A switch accepts each id once, and may not have noticed yet that
        the last connection is gone. A switch may also remember the highest id ever seen, and require a higher one.

        With leader election, the low bits are the term instead. Clocks differ, and the id of an earlier term must never
        be the higher one.
        """
        return min(max(self.rank << 64 | (self.term << _TERMS or time.time_ns()), highest + 1), _HIGHEST)


def in_words(election_id: int) -> str:
    """Return the high and the low 64 bits as text, as P4Runtime's tools write them."""
    return f"{election_id >> 64},{election_id & (1 << 64) - 1}"
