# SPDX-License-Identifier: Apache-2.0
"""Where the jobs that run are kept for a later controller: a file, where there is one controller, or etcd."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from p4reduce_controller.jobs.job import Job
from p4reduce_controller.store.state_names import Setup, StateError
from p4reduce_controller.switches.aggregator import Heard
from p4reduce_controller.switches.availability import Unavailable


class Store(Protocol):
    """Of one controller at a time. Every method may raise StateError."""

    @property
    def shared(self) -> bool:
        """Others take up what this controller leaves, be it jobs or switches without any."""

    @property
    def maybe_lost_leadership(self) -> Unavailable | None:
        """Why another controller may serve by now. Nobody is to be blamed for anything meanwhile."""

    async def is_ours(self) -> bool:
        """Whether no other controller served yet when this was called. Where that is not known it waits."""

    use: dict[str, Any]
    """By tenants: as `load` has found it, and as `keep` will keep it."""

    queue: list[Any]
    """Jobs that wait for slots, likewise."""

    fabric: dict[str, Any]
    """What operators have changed of the switches: as `peek` has found it, and as `keep` will keep it."""

    def peek(self) -> None:
        """Before there are switches to `load` for."""

    def load(self, setup: Setup, now: float) -> tuple[list[Job], dict[int, Heard]]:
        """Return the jobs, whose ranks have all still to come back, and where switches with a parent were heard by it.

        `setup`: as it is whenever something is kept. `now`: seconds on the clock of the jobs.
        """

    def refusal(self, why: str) -> StateError:
        """Return the error for contents that cannot be used."""

    async def keep(self, jobs: Callable[[], Iterable[Job]], children: Mapping[int, Heard], now: float) -> None:
        """Replace what is kept. `jobs` is called when they are written. Where it raises, they may be kept or not."""
