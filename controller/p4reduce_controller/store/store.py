# SPDX-License-Identifier: Apache-2.0
"""The interface of the store in which a later controller finds the running jobs.

It is a file for one controller, or etcd for several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from p4reduce_controller.jobs.job import Job
from p4reduce_controller.store.state_names import Setup, StateError
from p4reduce_controller.switches.aggregator import Children
from p4reduce_controller.switches.availability import Unavailable


class Store(Protocol):
    """A store that one controller uses at a time. Every method may raise StateError."""

    @property
    def shared(self) -> bool:
        """Whether other controllers can continue what this one leaves: jobs, and switches without jobs."""

    @property
    def maybe_lost_leadership(self) -> Unavailable | None:
        """The reason why another controller may serve by now. Meanwhile no rank may be treated as lost."""

    async def is_ours(self) -> bool:
        """Return whether no other controller had begun to serve when this was called. Wait until that is known."""

    use: dict[str, Any]
    """The usage of tenants: as `load` has read it, and as `keep` will write it."""

    queue: list[Any]
    """The jobs that wait for slots: as `load` has read them, and as `keep` will write them."""

    fabric: dict[str, Any]
    """The changes of switches by operators: as `peek` has read them, and as `keep` will write them."""

    def peek(self) -> None:
        """Read `fabric`, before there are switches to `load` for."""

    def load(self, setup: Setup, now: float) -> tuple[list[Job], Children]:
        """Return the jobs, whose ranks are all away, and where switches with a parent were heard by it.

        `setup`: is used for later saves too.
        `now`: seconds on the clock of the jobs.
        """

    def refusal(self, why: str) -> StateError:
        """Return the error for contents that cannot be used."""

    async def keep(self, jobs: Callable[[], Iterable[Job]], children: Children, now: float) -> None:
        """Replace the stored state. `jobs` is called when it is written. After an error, either state may be stored."""
