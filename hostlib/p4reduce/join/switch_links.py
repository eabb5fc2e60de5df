# SPDX-License-Identifier: Apache-2.0
"""The links of a rank to its switches, one for each thread of its engine: opened, probed, and closed if unused."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from p4reduce.control.client import Assigned, Session
from p4reduce.join.probing import Prober
from p4reduce.protocol import Membership
from p4reduce.transport import SharedTransport, StripedTransport, Switch, Transport, open_transports
from p4reduce.transport.base import explain_refusal


class SwitchLinks:
    """The owner of a rank's transports, until the caller takes them over as `transport`."""

    def __init__(self, kind: str, assigned: Assigned, membership: Membership, *, interface: str | None) -> None:
        """Open the links. Raises TransportError.

        kind: the kind of transport. membership: the membership whose packets the probes imitate.
        """
        self._switches = tuple(Switch(at.ip, at.udp_port, at.mac) for at in assigned.aggregators)
        self._membership, self._nonce = replace(membership, more_jobs=()), assigned.hello_nonce
        jobs = ((membership.job, membership.generation), *membership.more_jobs)
        self._probers = [self._prober(job) for job in jobs]
        self._links: list[Transport] = []
        largest = self._probers[0].largest
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            for thread in range(len(jobs)):
                self._links.append(
                    open_transports(
                        kind,
                        self._switches,
                        interface=interface,
                        largest_payload=largest,
                        jobs=jobs_of_thread(assigned, thread),
                    )
                )
            undo.pop_all()
        self.switches = [self._switches] * len(jobs)
        """The switches of each link."""

    def _prober(self, job: tuple[int, int]) -> Prober:
        number, generation = job
        return Prober(replace(self._membership, job=number, generation=generation), self._nonce)

    @property
    def transport(self) -> Transport | SharedTransport:
        return self._links[0] if len(self._links) == 1 else SharedTransport(self._links)

    def say_hello(self) -> None:
        for prober, link in zip(self._probers, self._links, strict=True):
            prober.say_hello(link)

    @property
    def trouble(self) -> str:
        """The kernel's error for packets to a switch, and what to do; "" if there is none."""
        for link in self._links:
            parts: Sequence[Transport] = (link,)
            switches = self._switches
            if isinstance(link, StripedTransport):
                parts, switches = link.parts, link.switches
            for part, switch in zip(parts, switches, strict=True):
                if part.trouble is not None:
                    return explain_refusal(part.trouble, switch)
        return ""

    def keep(self, indices: Sequence[int], spares: Sequence[int] = ()) -> None:
        """Keep only the links to these switches.

        indices: among all assigned ones, thread by thread; () for all. spares: more of them, without slots at first.
        """
        if not indices:
            return
        count = len(self._switches)
        for thread, link in enumerate(self._links):
            own, more = ([at - thread * count for at in each if at // count == thread] for each in (indices, spares))
            own += more
            if isinstance(link, StripedTransport) and (len(own) < count or more):
                self._links[thread] = link.keep(own, len(more))
                if link.jobs:  # a link turns the number of its first aggregator into those of the others
                    self._probers[thread] = self._prober(link.jobs[own[0]])
            self.switches[thread] = tuple(self._switches[index] for index in own)

    def await_answers(self, session: Session) -> None:
        """Wait until each switch in use has answered each link's probes: see `Prober.await_answers`."""
        for prober, link, switches in zip(self._probers, self._links, self.switches, strict=True):
            prober.await_answers(link, switches, session)

    def close(self) -> None:
        for link in self._links:
            link.close()


def jobs_of_thread(assigned: Assigned, thread: int) -> list[tuple[int, int]]:
    """Return the thread's job number and generation at each assigned aggregator; [] if they are the same at all."""
    return [divmod(at.jobs[thread], 1 << 16) for at in assigned.aggregators if at.jobs]
