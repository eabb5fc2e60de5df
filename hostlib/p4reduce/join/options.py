# SPDX-License-Identifier: Apache-2.0
"""Options of a rank that joins a job, checked once."""

from __future__ import annotations

from dataclasses import dataclass

from p4reduce import settings
from p4reduce.control.client import DEFAULT_CONTROLLER, Tls
from p4reduce.local.host import LocalChoice


@dataclass(frozen=True)
class JoinOptions:
    """The options of a rank that joins a job. `Communicator` describes them."""

    controller: str = DEFAULT_CONTROLLER
    job: str = "default"
    rank: int = 0
    world_size: int = 1
    slots: int = 0
    transport: str = "udp"
    interface: str | None = None
    token: str | None = None
    tls: Tls | None = None
    timeout: float = settings.TIMEOUT
    switch: str = ""
    local: LocalChoice = "off"
    threads: int = 1

    @classmethod
    def checked(
        cls,
        *,
        controller: str | None,
        job: str,
        rank: int | None,
        world_size: int | None,
        slots: int,
        transport: str | None,
        interface: str | None,
        token: str | None,
        tls: Tls | None,
        timeout: float,
        switch: str | None = None,
        local: LocalChoice | None = "off",
        threads: int | None,
    ) -> JoinOptions:
        """Return the options, with values from the environment for those that are None. Raises ValueError."""
        number, size = settings.rank_of_world(rank, world_size)
        return cls(
            controller=settings.text("controller", controller, "P4REDUCE_CONTROLLER", DEFAULT_CONTROLLER),
            job=settings.name("job", job),
            rank=number,
            world_size=size,
            slots=settings.integer("slots", slots, 0, settings.MAX_SLOTS),
            transport=settings.transport(transport),
            interface=interface,
            token=settings.token(token),
            tls=settings.tls(tls),
            timeout=settings.seconds("timeout", timeout),
            switch=settings.switch(switch),
            local=settings.local(local),
            threads=settings.threads(threads),
        )
