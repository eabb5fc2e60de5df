# SPDX-License-Identifier: Apache-2.0
"""The aggregator behind P4Runtime, the same for all targets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count

from p4reduce.control.certificates import TlsFiles
from p4reduce_controller.base.tasks import Interrupted, Tasks, cancel_and_wait, first_of, isolate_cancellation
from p4reduce_controller.p4runtime.cpu_channel import CpuChannel
from p4reduce_controller.p4runtime.desired import DesiredState
from p4reduce_controller.p4runtime.election import Election, in_words
from p4reduce_controller.p4runtime.link import Link, MastershipState, switch_channel
from p4reduce_controller.p4runtime.port_watch import NO_GNMI, States, watch_ports
from p4reduce_controller.p4runtime.program import Program
from p4reduce_controller.p4runtime.switch_config import SwitchConfig
from p4reduce_controller.switches.aggregator import (
    DIRECTIONS,
    ControlCounts,
    Counted,
    Direction,
    Heard,
    Listener,
    Superseded,
    SwitchError,
    SwitchUnavailable,
)
from p4reduce_controller.switches.availability import NOT_PRIMARY, Unavailable
from p4reduce_controller.switches.frames import OUTCOMES, Endpoint

log = logging.getLogger(__name__)

CLOSE_TIMEOUT = 3.0  # seconds for the removal of all entries when the controller ends
BACKOFF = (0.1, 0.2, 0.5, 1.0, 2.0)  # seconds until the next attempt to connect, after the first failure and so on
PREDECESSOR_TIMEOUT = 2.0  # seconds for a previous primary that is ending, because the switch may notice its end later
PORTS_RETRY = 2.0  # seconds until the port states are asked for again
_LOG_AWAY_AFTER = 1.5  # seconds without a switch until that is logged
SHORT_BREAK = 2.0  # seconds; new jobs may wait for a switch that is away no longer than that


class P4RuntimeSwitch:
    """An `aggregator.Aggregator` that keeps the connection, and leaves entries and packets to its parts.

    On every connection, jobs that miss entries are reported as lost. While another controller is the switch's primary,
    it waits.
    """

    def __init__(
        self, config: SwitchConfig, program: Program, election: Election | None = None, tls: TlsFiles | None = None
    ) -> None:
        """Prepare the connection. `tls`: for connections to the switch; None for plain text."""
        self.layout, self.address, self.target = program.layout, config.address, config.target
        self.knows_vlans, self.knows_ipv6 = program.knows_vlans, program.knows_ipv6
        self.counts = ControlCounts()
        self.ports: States = {}
        self.ports_unknown = "it is not connected yet"
        self._config = config
        self._tls = tls
        self._program = program
        self._election = election or Election()
        self._take_over = self._election.take_over
        self._desired = DesiredState(config, program, self._linked)
        drops = self.counts.cpu_drops
        self._cpu = CpuChannel(
            self.target, self.address, self.layout, self._linked, self._on_hello, self._awaits, drops
        )
        self.expect, self.install = self._desired.expect, self._desired.install
        self.fence, self.forget = self._desired.fence, self._desired.forget
        self.set_loss, self.flood_to = self._desired.set_loss, self._desired.flood_to
        self.flooded_port = self._desired.flooded_port
        self.reset, self.abort, self.query = self._cpu.reset, self._cpu.abort, self._cpu.query
        self._link: Link | None = None
        self._own_id = 0  # the latest id with which this controller was primary
        self._is_backup = False
        self._away_since = time.monotonic()
        self._connected = asyncio.Event()
        self._given_up = asyncio.Event()
        self._reason = "not connected yet"
        self._listener: Listener | None = None
        self._tasks = Tasks(self._nobody_connects)

    @property
    def unavailable(self) -> Unavailable | None:
        if self._link:
            return None
        if self._is_backup:
            return Unavailable(self._reason, summary=NOT_PRIMARY)
        away = time.monotonic() - self._away_since
        return Unavailable(self._reason, summary=f"unreachable for {away:.0f} s", brief=away < SHORT_BREAK)

    @property
    def loss_rates(self) -> Mapping[tuple[int, Direction], float]:
        return self._desired.loss_rates

    async def say_hello(
        self, port: int, to: Endpoint, worker: int, nonce: int, *, short: bool = False, vlan: int = 0
    ) -> None:
        await self._cpu.say_hello(self._desired.egress.live(port), to, worker, nonce, short=short, vlan=vlan)

    # The connection.

    async def look(self, timeout: float) -> None:
        deadline, log_at = time.monotonic() + timeout, time.monotonic() + _LOG_AWAY_AFTER
        for failures in count():
            link = self._new_link()
            try:
                await asyncio.wait_for(
                    isolate_cancellation(self._find_vacant(link)), max(0.0, deadline - time.monotonic())
                )
                return
            except Superseded:
                raise
            except (SwitchError, Interrupted) as error:
                self._reason = str(error)
            except asyncio.TimeoutError:
                pass
            finally:
                await link.close()
            if time.monotonic() + _backoff(failures) >= deadline:
                raise SwitchUnavailable(f"no switch after {timeout:g} s: {self._reason}")
            if time.monotonic() >= log_at:
                log_at, left = math.inf, deadline - time.monotonic()  # it is logged once
                log.warning("waiting for a switch, for %.0f s more: %s", left, self._reason)
            await asyncio.sleep(_backoff(failures))

    async def _find_vacant(self, link: Link) -> None:
        """Raise Superseded if there is a primary that must not be replaced and does not end by itself."""
        mastership = await link.look()
        if mastership.has_primary and not self._take_over:
            try:
                await asyncio.wait_for(_wait_for_no_primary(link, mastership), PREDECESSOR_TIMEOUT)
            except asyncio.TimeoutError:
                raise Superseded(
                    f"another controller, with election id {in_words(mastership.election_id)}, is the primary of the "
                    f"switch at {self.target}, and nothing was changed; end that one, or give --take-over to make it "
                    "stand by"
                ) from None

    async def start(self, listener: Listener, timeout: float) -> None:
        self._listener = listener
        self._tasks.start(self._keep_connected(), f"switch at {self.target}")
        try:
            await asyncio.wait_for(self._connected.wait(), timeout)
        except asyncio.TimeoutError:
            raise SwitchUnavailable(f"no switch after {timeout:g} s: {self._reason}") from None

    async def close(self, *, keep: bool = False) -> None:
        if self._link is not None and not keep:
            with contextlib.suppress(SwitchError, asyncio.TimeoutError):
                await asyncio.wait_for(self._desired.take_everything_off(), CLOSE_TIMEOUT)
        await self._tasks.close()

    async def wait_connected(self) -> None:
        await first_of(self._connected.wait(), self._given_up.wait())

    def give_up(self) -> None:
        self._given_up.set()

    @property
    def given_up(self) -> bool:
        return self._given_up.is_set()

    def _new_link(self) -> Link:
        schema, errors = self._program.schema, self.counts.rpc_errors
        return Link(self.target, self._config.device_id, schema, self._cpu.on_packet, self._tls, errors)

    async def _keep_connected(self) -> None:
        failures = 0
        while True:
            link = self._new_link()
            try:
                await isolate_cancellation(self._use(link))
            except Exception as error:
                known = isinstance(error, SwitchError | Interrupted)
                self._is_backup = isinstance(error, Superseded)
                was_connected = self._disconnected(str(error) if known else f"{type(error).__name__}: {error}")
                if was_connected:
                    failures = 0
                level = logging.WARNING if was_connected or not known else logging.INFO
                log.log(level, "%s", self._reason, exc_info=None if known else error)
            finally:
                self._disconnected(self._reason)
                await link.close()
            await asyncio.sleep(_backoff(failures))
            failures += 1

    async def _use(self, link: Link) -> None:
        """Use the connection until it breaks. Raises SwitchUnavailable or Superseded then."""
        mastership = await link.look()
        if mastership.has_primary and not self._take_over and mastership.election_id != self._own_id:
            self._is_backup = True
            self._reason = f"another controller, with election id {in_words(mastership.election_id)}, is its primary"
            mastership = await _wait_for_no_primary(link, mastership)
        if why := self._election.reason_to_wait():
            raise SwitchUnavailable(f"the switch at {self.target} is left to the controller that serves: {why}")
        election_id = self._election.id_above(mastership.election_id)
        self._reason = "it answers, and is being set up"
        installed = await link.become_primary(election_id)
        self._own_id = election_id
        self._take_over = False  # otherwise two controllers with this option would replace each other forever
        lost = await self._desired.reconcile(link)
        log.info("connected to the switch at %s%s", self.target, ", pipeline installed" if installed else "")
        self._link = link
        self._is_backup = False
        self._connected.set()
        self._tell(lambda listener: listener.connected(lost, restarted=installed))
        watching = asyncio.ensure_future(self._watch_ports())
        try:
            await link.run()
        finally:
            await cancel_and_wait(watching)
            self.ports, self.ports_unknown = {}, "it is not connected"

    async def _watch_ports(self) -> None:
        """Watch the ports until cancelled, or until it is clear that the switch has no gNMI server."""
        while True:
            try:
                async with switch_channel(self.target, self._tls) as channel:
                    why = await isolate_cancellation(watch_ports(channel, self._ports_are))
            except Interrupted as error:
                why = str(error)
            self._ports_are({}, why)
            log.info("the ports of the switch at %s are not known: %s", self.target, why)
            if why == NO_GNMI:
                return
            await asyncio.sleep(PORTS_RETRY)

    def _ports_are(self, states: States, unknown: str = "") -> None:
        before, self.ports, self.ports_unknown = self.ports, states, unknown
        if before != states:
            self._tell(lambda listener: listener.ports_changed())
            self._tasks.start(self._follow_ports(states), f"link groups of the switch at {self.target}")

    async def _follow_ports(self, states: States) -> None:
        for failures in count():
            try:
                await isolate_cancellation(self._desired.follow_ports(states))
                return
            except (SwitchUnavailable, Interrupted):  # the next connection begins with it
                return
            except SwitchError as error:
                if not failures:
                    log.warning("packets of link groups may leave by ports that are down: %s", error)
            await asyncio.sleep(_backoff(failures))
            if self.ports is not states:  # a later call does it
                return

    def _disconnected(self, why: str) -> bool:
        had = self._link is not None
        if had:
            self._away_since = time.monotonic()
        self._link = None
        self._reason = why
        self._connected.clear()
        return had

    def _nobody_connects(self, error: BaseException) -> None:
        self._disconnected(f"the controller no longer tries to connect to it: {type(error).__name__}: {error}")

    def _tell(self, what: Callable[[Listener], None]) -> None:
        if self._listener is not None:
            what(self._listener)

    def _awaits(self, nonce: int) -> bool:
        return self._listener is not None and self._listener.awaits(nonce)

    def _on_hello(self, hello: Heard) -> None:
        hello = replace(hello, lag=self._config.lag_of(hello.port))
        self._tell(lambda listener: listener.on_hello(hello))

    def _linked(self) -> Link:
        if self._link is None:
            raise SwitchUnavailable(f"the switch at {self.target} is not connected: {self._reason}")
        return self._link

    # Counters.

    async def outcomes(self) -> dict[str, int]:
        counts = [entry async for entry in self._linked().read([self._program.counter("outcomes")])]
        forged = [entry.packet_count async for entry in self._linked().read([self._program.counter("forgeries")])]
        return {**{OUTCOMES[entry.index or 0]: entry.packet_count for entry in counts}, "forged": sum(forged)}

    async def job_traffic(self) -> dict[tuple[int, int], Counted]:
        result: dict[tuple[int, int], Counted] = {}
        if wanted := self._program.members():
            async for entry in self._linked().read(wanted):
                match = entry.table_entry.match if entry.table_entry is not None else None
                if match is None:
                    continue
                which = int(match["job"]), int(match["generation"])
                so_far = result.get(which, Counted(0, 0))
                result[which] = Counted(so_far.packets + entry.packet_count, so_far.bytes + entry.byte_count)
        return result

    async def losses(self) -> dict[tuple[int, Direction], int]:
        result: dict[tuple[int, Direction], int] = {}
        for direction in DIRECTIONS:
            async for entry in self._linked().read([self._program.counter(f"losses_{direction}")]):
                port = entry.index or 0
                if entry.packet_count or (port, direction) in self._desired.loss_rates:
                    result[port, direction] = entry.packet_count
        return result


def _backoff(failures: int) -> float:
    return BACKOFF[min(failures, len(BACKOFF) - 1)]


async def _wait_for_no_primary(link: Link, mastership: MastershipState) -> MastershipState:
    while mastership.has_primary:
        mastership = await link.wait_for_no_primary()
    return mastership
