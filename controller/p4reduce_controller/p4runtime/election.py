# SPDX-License-Identifier: Apache-2.0
"""Which election ids a controller gives itself. The switch's primary is who has the highest."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from p4reduce_controller.switches.availability import Unavailable

DEFAULT_RANK = 1 << 32  # p4runtime-shell has 1 unless told otherwise
HIGHEST_RANK = (1 << 64) - 1
_HIGHEST = (1 << 128) - 1
_TERMS = 16  # bits for the connections of a term, each of which is one more than the highest before


@dataclass(frozen=True)
class Election:
    """`rank`: the high 64 bits of our ids. `take_over`: whether a primary that is there has to give way, once.

    `term`: which turn of serving this is, where controllers take turns; later ones are higher. `bar`: why this one may
    not become primary now.
    """

    rank: int = DEFAULT_RANK
    take_over: bool = False
    term: int = 0
    bar: Callable[[], Unavailable | None] = lambda: None

    def id_above(self, highest: int) -> int:
        """Return an id of ours that is new, and higher than that one.

        The low 64 bits are the time, so that ours rise: a switch may not have noticed yet that our last connection is
        gone, and accepts each id once. A switch may also remember the highest id ever, and want a higher one. Of
        controllers that take turns they are the term: clocks differ, and an id of an earlier term must not be the
        higher one.
        """
        return min(max(self.rank << 64 | (self.term << _TERMS or time.time_ns()), highest + 1), _HIGHEST)


def in_words(election_id: int) -> str:
    """Its high and its low 64 bits, as P4Runtime's tools write them."""
    return f"{election_id >> 64},{election_id & (1 << 64) - 1}"
