# SPDX-License-Identifier: Apache-2.0
"""The life of one controller, from its settings to its end."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from p4reduce.control.certificates import TlsFiles
from p4reduce.transport.addresses import is_ipv6, protocol_of
from p4reduce_controller.base.limits import Rates
from p4reduce_controller.base.listening import ListenError, ServiceConfig
from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.fabric.changes import Changes, InitialSwitches, changes_from, specs_of
from p4reduce_controller.fabric.inventory import Inventory
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.jobs.lifecycle import JobOptions
from p4reduce_controller.jobs.tenancy import Tenancy
from p4reduce_controller.observability.tracing import configured
from p4reduce_controller.p4runtime.builds import LEAST_MTU, mtu_over_ipv4
from p4reduce_controller.p4runtime.election import Election
from p4reduce_controller.p4runtime.program import Program, load_schema
from p4reduce_controller.p4runtime.switch import P4RuntimeSwitch
from p4reduce_controller.p4runtime.switch_config import SwitchConfig, addresses_of, check_addresses
from p4reduce_controller.service.controller import Controller
from p4reduce_controller.settings.settings import Settings, checked_trees
from p4reduce_controller.store.state import StateFile
from p4reduce_controller.store.store import Store
from p4reduce_controller.switches.aggregator import Aggregator, Listener, Superseded, SwitchUnavailable
from p4reduce_controller.tenants.audit import Audit
from p4reduce_controller.tenants.gate import Gate, Guard, Peers
from p4reduce_controller.tenants.pace import Pace
from p4reduce_controller.tenants.users import UsersFile

log = logging.getLogger(__name__)

OTHERS_TIMEOUT = 3.0  # seconds for more switches once one has answered; ranks of kept jobs wait at most the rejoin time
BIND_TIMEOUT = 2.0  # seconds for a port that this process has just released
BIND_RETRY = 0.05  # seconds
TAKEOVER_OTHERS_TIMEOUT = 0.5  # instead of `OTHERS_TIMEOUT`, because ranks are waiting


class Stopped(Exception):
    """An error: Ctrl-C ended the controller while it waited for what the message says."""


@dataclass(frozen=True)
class Entrance:
    """The users of the controller and its audit log. `gate`: None if there are no users."""

    audit: Audit
    gate: Gate | None

    @classmethod
    def of(cls, settings: Settings) -> Entrance:
        """Open both as the settings say. Raise SettingsError."""
        audit = Audit(Path(settings.audit_log) if settings.audit_log else None)
        users = UsersFile(Path(settings.users), settings.token()) if settings.users else None
        return cls(audit, Gate(users, audit) if users is not None else None)

    def guard(self, config: ServiceConfig) -> Guard:
        """Return the guard that admits callers of a standby."""
        return self.gate or Peers(config.rates, Pace(), config.token, self.audit)

    def close(self) -> None:
        self.audit.close()


@dataclass(frozen=True)
class Leadership:
    """One leadership of a controller among several.

    `state`: the state that an earlier leader has stored.
    `release`: gives up the port at which the standby listens.
    `store_tls`: for connections to the store.
    """

    state: Store
    entrance: Entrance
    config: ServiceConfig
    term: int
    release: Callable[[], Awaitable[None]]
    store_tls: TlsFiles | None = None


@asynccontextmanager
async def running(
    settings: Settings, switch_timeout: float, leadership: Leadership | None = None
) -> AsyncIterator[Controller]:
    """Yield a controller that serves.

    With a state file or a `leadership`, its jobs outlive it, unless `keeps_jobs` is unset.
    Raises SettingsError, PipelineError, StateError, SwitchError, ListenError or OSError.
    """
    config = leadership.config if leadership else service_config(settings)
    switch_tls, store_tls = settings.switch_tls(), leadership.store_tls if leadership else None
    election = _election(settings, leadership)
    later_election = replace(election, take_over=False)  # switches that operators add keep another primary
    async with AsyncExitStack() as ends:  # each step runs even if others raise, the last one first
        state = leadership.state if leadership else ends.enter_context(_state_file(settings))
        initial = _initial_switches(settings, state)
        program = _program(settings, initial)
        switches, retained = (
            [P4RuntimeSwitch(one, program, election, switch_tls) for one in specs]
            for specs in (initial.specs, initial.retained)
        )
        entrance = leadership.entrance if leadership else ends.enter_context(closing(Entrance.of(settings)))
        inventory, jobs = _jobs(settings, initial, switches, entrance.gate, returns=state is not None)
        traces = configured()
        ends.push_async_callback(asyncio.to_thread, traces.close)
        controller = Controller(inventory, jobs, config, state, entrance.gate, entrance.audit, traces)
        controller.fabric.retain(initial, retained)
        if leadership:
            await leadership.release()
        await _bind(controller, BIND_TIMEOUT if leadership else 0.0)
        ends.push_async_callback(inventory.close, lambda: controller.has_kept_jobs)
        ends.push_async_callback(controller.close)
        await ends.enter_async_context(_web(settings, config, controller, switch_tls, store_tls))
        controller.restore()
        await controller.service.listen()
        latecomers = TAKEOVER_OTHERS_TIMEOUT if leadership else OTHERS_TIMEOUT
        await start_switches([*switches, *retained], controller.listener, switch_timeout, latecomers)
        await controller.uplinks.find_all(min(switch_timeout, latecomers))
        controller.open(
            settings,
            lambda spec: P4RuntimeSwitch(spec, program, later_election, switch_tls),
            initial,
            lambda spec: check_program(program, spec, settings),
        )
        await controller.start()
        yield controller


def _program(settings: Settings, initial: InitialSwitches) -> Program:
    """Return the program of all switches. Raises SettingsError or PipelineError."""
    mtu = max(LEAST_MTU, mtu_over_ipv4(settings.mtu, [one.address.ip for one in initial.configured]))
    program = Program(load_schema(Path(settings.pipeline) if settings.pipeline else None, mtu))
    for spec in (*initial.specs, *initial.retained, *initial.waiting):
        check_program(program, spec, settings)
    return program


def check_program(program: Program, spec: SwitchConfig, settings: Settings) -> None:
    """Raise SettingsError if the program does not know the switch's addresses, or if its packets are too long."""
    for ip in (spec.address.ip, *spec.more_addresses):
        if is_ipv6(ip) and not program.knows_ipv6:
            other = f", or another --pipeline than {settings.pipeline}" if settings.pipeline else ""
            raise SettingsError(
                f"--address {ip} of the switch {spec.name}: its program knows only IPv4 addresses; give one{other}"
            )
    needed = program.layout.mtu(spec.address.ip)
    if needed > settings.mtu and not settings.pipeline:
        raise SettingsError(
            f"--address {spec.address} of the switch {spec.name}: with {protocol_of(spec.address.ip)} headers, its "
            f"packets need an MTU of {needed}, and --mtu is {settings.mtu}; raise it, and the MTU of the links"
        )


def _election(settings: Settings, leadership: Leadership | None) -> Election:
    """Return the rules of the election ids. A leader takes over, as long as it may be the leader."""
    if leadership is None:
        return Election(settings.election_id, settings.take_over)
    state = leadership.state
    return Election(
        settings.election_id,
        take_over=True,
        term=leadership.term,
        reason_to_wait=lambda: state.maybe_lost_leadership,
    )


def _state_file(settings: Settings) -> AbstractContextManager[Store | None]:
    """Return the state file of the settings, which leaving the block closes; None if there is none."""
    return closing(StateFile(Path(settings.state))) if settings.state else nullcontext()


def _jobs(
    settings: Settings, initial: InitialSwitches, switches: Sequence[Aggregator], gate: Gate | None, *, returns: bool
) -> tuple[Inventory, Jobs]:
    """Return the switches as a site, and the logic of jobs on them. `returns`: whether ranks may rejoin kept jobs."""
    addresses = addresses_of(initial.specs)
    check_addresses([one for one in initial.specs if one not in initial.leaving], addresses)
    uplinks = {one.name: one.uplinks_among(addresses) for one in initial.specs}
    trees, nodes = checked_trees(uplinks, {one.name for one in initial.specs if one.spare})
    inventory = Inventory(switches, trees, nodes, default_slots=settings.slots)
    options = JobOptions(rejoin_time=settings.rejoin_time, returns=returns, moves_slots=not settings.keep_slots)
    tenancy = Tenancy(gate.users.book.policy) if gate is not None else None
    return inventory, Jobs(inventory, options, tenancy=tenancy, fixed=[spec.fixed for spec in initial.specs])


def _initial_switches(settings: Settings, state: Store | None) -> InitialSwitches:
    """Return the switches of the settings with the changes by operators. Raises SettingsError or StateError."""
    if state is None:
        return Changes().begin_with(specs_of(settings))
    state.peek()
    try:
        return changes_from(state.fabric, settings).begin_with(specs_of(settings))
    except ValueError as error:
        raise state.refusal(str(error)) from None


async def _bind(controller: Controller, timeout: float) -> None:
    """Bind the service's port, and try again for `timeout` seconds while it is in use. Raises ListenError."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            controller.bind()
            return
        except ListenError:
            if time.monotonic() >= deadline:
                raise
            await asyncio.sleep(BIND_RETRY)


def service_config(settings: Settings) -> ServiceConfig:
    return ServiceConfig(
        listen=settings.listen,
        token=settings.token(),
        tls=settings.serving_tls(),
        insecure=settings.insecure,
        lease=settings.lease,
        rates=Rates(settings.joins_per_s, settings.calls_per_s, settings.messages_per_s),
    )


async def run(
    settings: Settings,
    switch_timeout: float,
    on_ready: Callable[[Controller], None],
    load_again: Callable[[], Settings] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM. Jobs in a state file go on after SIGTERM, but not after SIGINT.

    At SIGHUP, `load_again` reads the settings once more, and changes of switches take effect as soon as the controller
    serves.

    Raises the error that the service has failed with, and Stopped at a SIGINT while it still waits for switches.
    """
    task = asyncio.current_task()
    assert task is not None
    handle = asyncio.get_running_loop().add_signal_handler
    interrupted = asyncio.Event()

    def interrupt() -> None:
        interrupted.set()
        task.cancel()

    handle(signal.SIGINT, interrupt)
    handle(signal.SIGTERM, task.cancel)
    early = asyncio.Event()  # a SIGHUP before the controller serves
    if load_again is not None:
        handle(signal.SIGHUP, early.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # the command line has blocked it until now
    try:
        async with running(settings, switch_timeout) as controller:

            def end_jobs_too() -> None:
                controller.keeps_jobs = False
                task.cancel()

            handle(signal.SIGINT, end_jobs_too)
            if load_again is not None:
                handle(signal.SIGHUP, controller.operations.read_again, load_again)
                if early.is_set():
                    controller.operations.read_again(load_again)
            on_ready(controller)
            await controller.failed.wait()
            assert controller.failure is not None
            raise controller.failure
    except asyncio.CancelledError as end:
        if end.args and interrupted.is_set():
            raise Stopped(*end.args) from None


@asynccontextmanager
async def _web(
    settings: Settings, serving: ServiceConfig, controller: Controller, *calling: TlsFiles | None
) -> AsyncIterator[None]:
    if not settings.metrics and not settings.page:
        yield
        return
    from p4reduce_controller.observability.certificates import CertificateExpiry
    from p4reduce_controller.observability.metrics import Metrics
    from p4reduce_controller.observability.watch import Watch
    from p4reduce_controller.webpage.web import Web

    watch = Watch(controller.status, controller.reports.ports)
    controller.telemetry.registry.register(CertificateExpiry(serving.tls, *calling))
    controller.telemetry.registry.register(Metrics(lambda: watch.last_view))
    web = Web(settings, serving.tls, watch, controller.telemetry.registry, controller, controller.service.guard)
    try:
        await web.start()
        controller.page, controller.metrics = web.page, web.metrics
        watch.start()
        yield
    finally:
        await watch.close()
        await web.close()


async def start_switches(
    switches: Sequence[Aggregator],
    listener: Callable[[int], Listener],
    timeout: float,
    latecomers: float = OTHERS_TIMEOUT,
) -> None:
    """Check all switches before any is changed, and then start them.

    Raises SwitchUnavailable if none has answered after `timeout`, and Superseded if one has another primary. A
    cancellation while waiting carries a text about the missing switches.
    """
    try:
        found = await _gather_in_time([switch.look(timeout) for switch in switches], timeout, latecomers)
    except asyncio.CancelledError:
        away = ((one.target, one.unavailable) for one in switches)
        awaited = "; ".join(f"the switch at {target} ({why.reason})" for target, why in away if why)
        raise asyncio.CancelledError(f"stopped while it waited for {awaited}") from None
    if superseded := [error for error in found if isinstance(error, Superseded)]:
        raise superseded[0]
    if all(found):
        raise next(filter(None, found))
    starts = [
        switch.start(listener(number), 0.0 if found[number] else timeout) for number, switch in enumerate(switches)
    ]
    for number, error in enumerate(await _gather_in_time(starts, timeout, latecomers)):
        if error is not None:
            log.warning("the switch at %s is not connected yet: %s", switches[number].target, found[number] or error)
    unavailable = [why.reason for one in switches if (why := one.unavailable)]
    if len(unavailable) == len(switches):
        raise SwitchUnavailable(f"no switch after {timeout:g} s (--switch-timeout): {'; '.join(unavailable)}")


async def _gather_in_time(
    works: Sequence[Coroutine[Any, Any, None]], timeout: float, latecomers: float
) -> list[BaseException | None]:
    """Return what each raised. Once one has succeeded, the others have `latecomers` seconds more."""
    tasks = [asyncio.ensure_future(work) for work in works]
    waiting = set(tasks)
    clock = asyncio.get_running_loop().time
    end = clock() + timeout + latecomers  # each has a deadline of its own
    try:
        while waiting and clock() < end:
            done, waiting = await asyncio.wait(waiting, timeout=end - clock(), return_when=asyncio.FIRST_COMPLETED)
            if any(task.exception() is None for task in done):
                end = min(end, clock() + latecomers)
    finally:
        for task in waiting:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    late = SwitchUnavailable("it has not answered yet")
    return [late if isinstance(one, asyncio.CancelledError) else one for one in results]
