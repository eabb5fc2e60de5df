# SPDX-License-Identifier: Apache-2.0
"""How a rank comes into a job and out of it: session, transport, worker and engine, in order."""

from __future__ import annotations

from dataclasses import dataclass

from p4reduce.backends import select_backend, start_engine
from p4reduce.carrier import Carrier
from p4reduce.control.client import Assigned, Session, Tls
from p4reduce.errors import JobAborted, P4ReduceError
from p4reduce.protocol import Membership, Worker
from p4reduce.protocol.packet import Codec
from p4reduce.transport import Switch, open_transport

# How long to wait for a controller that is only just starting.
CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Seat:
    """A rank's place in a running job."""

    session: Session
    membership: Membership
    engine: Carrier

    def leave(self, *, well: bool = True) -> None:
        """Leaves the job, together with the other ranks. Operations under way fail.

        well: False for a rank that cannot go on, which ends the job for the others at once.
        """
        if not self.engine.in_own_process():
            return  # a forked process has the session's sockets, but it is its parent that is in the job
        well = well and self.engine.failure is None
        self.engine.close(P4ReduceError("the communicator is closed"))
        try:
            if well:
                self.session.leave()
        finally:
            self.session.close()


def take_seat(
    controller: str,
    *,
    job: str,
    rank: int,
    world_size: int,
    slots: int,
    transport: str,
    interface: str | None,
    token: str | None,
    tls: Tls | None,
    timeout: float,
) -> Seat:
    """Joins the job and returns when all ranks have. Raises JoinError or TransportError."""
    engine: Carrier | None = None
    select_backend()  # complains of a wrong choice before there is anything to undo

    def abort(error: JobAborted) -> None:
        if engine is not None:
            engine.fail(error)

    session = Session(controller, token=token, tls=tls, connect_timeout=min(timeout, CONNECT_TIMEOUT_S), on_abort=abort)
    try:
        place = session.join(job, rank, world_size, slots=slots, timeout=timeout)
        member = membership(place, world_size)
        hello = Worker(member).hello(place.hello_nonce)
        switch = Switch(place.switch_ip, place.switch_udp_port, place.switch_mac)
        largest = Codec(place.lanes, place.block_size).largest
        link = open_transport(transport, switch, interface=interface, largest_payload=largest)

        def say_hello() -> None:
            link.send([hello])

        try:
            session.wait_ready(say_hello)
            engine = start_engine(link, member, switch=str(switch), name=f"p4reduce rank {rank}")
        except BaseException:
            link.close()
            raise
        if session.aborted is not None:  # before there was an engine to tell
            engine.fail(session.aborted)
    except BaseException:
        session.close()
        raise
    return Seat(session, member, engine)


def membership(place: Assigned, world_size: int) -> Membership:
    """What the worker needs of what the controller assigned."""
    return Membership(
        job=place.job,
        generation=place.generation,
        rank=place.worker,
        world_size=world_size,
        slots=place.slots,
        lanes=place.lanes,
        block_size=place.block_size,
        first_seq=place.first_seq,
    )
