# SPDX-License-Identifier: Apache-2.0
"""Path MTU probes with HELLOs: they test, before a job begins, whether its longest packets reach switches and return.

Full HELLOs are as long as these packets, with zeros for the values. Short HELLOs also pass where full ones do not, and
say in `seq` that this rank sends full ones, too.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from itertools import chain, repeat

import numpy as np

from p4reduce.control.client import Session
from p4reduce.errors import JoinError
from p4reduce.protocol.aggregators import from_aggregator
from p4reduce.protocol.constants import SHORT_HELLO, Op
from p4reduce.protocol.header import NONCE
from p4reduce.protocol.membership import Membership
from p4reduce.protocol.packet import Codec, ProtocolError, hello_of
from p4reduce.transport import Switch, Transport, TransportError
from p4reduce.transport.addresses import protocol_of
from p4reduce.transport.base import iptables, mtu_advice
from p4reduce.transport.frames import ip_and_udp_bytes

ANSWER_TIMEOUT_S = 10.0
SHORT_AFTER_S = 2.0  # without an answer; then the rank sends short HELLOs, too
ASK_AGAIN_S = (0.1, 0.2, 0.5)  # the last one repeats; a second answer arrives while the job runs, and is ignored


class Prober:
    """The probes of one rank in one job."""

    def __init__(self, membership: Membership, nonce: int) -> None:
        """Make the probes. `nonce`: the 64 bits by which the controller recognises the rank's HELLOs."""
        self._codec = Codec(membership.lanes, membership.block_size)
        every = (1 << membership.lanes) - 1
        zeros = np.zeros((membership.lanes, membership.block_size), np.int32)
        self._full = hello_of(membership, nonce, active=every, present=every, values=zeros)
        self._turns = (self._full, hello_of(membership, nonce, seq=SHORT_HELLO))
        self._next = 0
        self._short_answers: set[int] = set()  # the halves that short answers name

    @property
    def largest(self) -> int:
        """The length of the job's longest datagrams, in bytes."""
        return self._codec.largest

    def say_hello(self, link: Transport) -> None:
        """Send a full HELLO, and at the next call a short one; the controller sees which ones arrive."""
        link.send([self._turns[self._next % 2]])
        self._next += 1

    def await_answers(self, link: Transport, switches: Sequence[Switch], session: Session) -> None:
        """Wait until each of the `switches` of `link` has answered a full HELLO, new or old, with one of that length.

        Raises TransportError if one does not, and JoinError if the job is aborted meanwhile.
        """
        awaited = {from_aggregator(0, index, len(switches)): switch for index, switch in enumerate(switches)}
        poll = select.poll()
        poll.register(link, select.POLLIN)
        start = time.monotonic()
        deadline = start + ANSWER_TIMEOUT_S
        for wait in chain((0.0,), ASK_AGAIN_S, repeat(ASK_AGAIN_S[-1])):
            if wait:  # the first round only reads answers that have arrived already
                link.send(self._turns if time.monotonic() >= start + SHORT_AFTER_S else [self._full])
            until = min(time.monotonic() + wait, deadline)
            while awaited and poll.poll(1000 * max(0.0, until - time.monotonic())):
                for half in map(self._answered, link.receive()):
                    awaited.pop(half, None)
            if session.aborted is not None:
                raise JoinError(str(session.aborted))
            if not awaited:
                return
            if time.monotonic() >= deadline:
                half, switch = next(iter(awaited.items()))
                raise TransportError(self._unanswered(switch, short_came=half in self._short_answers))

    def _answered(self, payload: bytes) -> int:
        """Return the half in a full answer, which is the first half of the answering switch; -1 for other packets."""
        try:
            packet = self._codec.decode(payload)
        except ProtocolError:
            return -1
        if packet.op != Op.HELLO or payload[NONCE] != self._full[NONCE]:
            return -1
        if len(payload) < self.largest:
            self._short_answers.add(packet.slot)
            return -1
        return packet.slot

    def _unanswered(self, switch: Switch, *, short_came: bool) -> str:
        needed = self.largest + ip_and_udp_bytes(switch.ip)
        text = (
            f"the job's longest packets, {needed} bytes with {protocol_of(switch.ip)} headers, reach the switch at "
            f"{switch}, but for {ANSWER_TIMEOUT_S:g} s "
        )
        links = f"every link on the way back needs an MTU of {needed} or more{mtu_advice(needed, ip=switch.ip)}"
        if short_came:
            return f"{text}no answer of that length has come back, while short ones have; {links}"
        return (
            f"{text}no answer has come back, short or long; let UDP from {switch} through the firewall of this host "
            f"(`nft list ruleset`, `{iptables(switch)} -S INPUT`), and those on the way; if that is done, {links}"
        )
