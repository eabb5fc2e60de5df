# SPDX-License-Identifier: Apache-2.0
"""Leader election among controllers: one serves for as long as it holds the lease in etcd, and the others stand by."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from p4reduce.control.diagnostics import plain_host
from p4reduce_controller.base.clock import with_timeout
from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.base.tasks import cancel_and_wait
from p4reduce_controller.etcd.client import Etcd, EtcdError, EtcdUnavailable
from p4reduce_controller.etcd.lease import Lease, holder
from p4reduce_controller.etcd.state import EtcdState
from p4reduce_controller.fabric.changes import specs_of, with_switches_of
from p4reduce_controller.service.controller import Controller
from p4reduce_controller.service.run import Entrance, Leadership, running, service_config
from p4reduce_controller.settings.settings import Settings
from p4reduce_controller.settings.texts import parse_store
from p4reduce_controller.standby.standby import Standby
from p4reduce_controller.store.state import StateError
from p4reduce_controller.switches.aggregator import SwitchUnavailable

if TYPE_CHECKING:
    from p4reduce_controller.webpage.web import Web

log = logging.getLogger(__name__)

POLL_INTERVAL = 0.2  # seconds between a standby's reads of the lease
PREDECESSOR_TIMEOUT = 3.0  # seconds beyond the lease, for a leader that has just died
CAMPAIGN_BACKOFF = 2.0  # seconds for which a controller that could not serve lets others campaign
_LISTEN_REFUSALS = 3  # in a row: the port may be released and bound again within one process
_LISTEN_PAUSE = 0.1  # seconds between two connections to the leader's port
_CONNECT_TIMEOUT = 2.0  # seconds; a connection without an answer says nothing about the leader
OnStandby = Callable[[Mapping[str, str], str], None]


async def serve_or_stand_by(
    settings: Settings,
    switch_timeout: float,
    on_ready: Callable[[Controller], None],
    on_standby: OnStandby,
    load_again: Callable[[], Settings] | None = None,
) -> None:
    """Serve or stand by until SIGINT or SIGTERM. Raises what `LeaderElection` raises.

    At SIGHUP, `load_again` reads the settings once more, for changes of switches.
    """
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    election = LeaderElection(settings, switch_timeout, on_ready, on_standby)
    if load_again is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, election.read_again, load_again)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # the command line has blocked it until now
    with suppress(asyncio.CancelledError):
        await election.run()


class LeaderElection:
    """The life of one controller among several, until it is cancelled or fails.

    Raises what `running` raises, and StateError.
    """

    def __init__(
        self, settings: Settings, switch_timeout: float, on_ready: Callable[[Controller], None], on_standby: OnStandby
    ) -> None:
        """Prepare to stand by. Raises SettingsError.

        `on_standby`: is called with the standby's addresses by name, and the controller that serves.
        """
        members, self._prefix = parse_store(settings.store)
        self._tls = settings.store_tls()
        self._etcd = Etcd(members, self._tls)
        self._settings = settings
        self._switch_timeout = switch_timeout
        self._on_ready = on_ready
        self._on_standby = on_standby
        self._entrance = Entrance.of(settings)
        self._key = f"{self._prefix}/serving"
        self._config = service_config(settings)
        self._name = f"--store {settings.store}"
        self._server: Standby | None = None
        self._web: Web | None = None
        self._leader = ""  # a text about the controller that serves; "" if none is known
        self._watched: tuple[str, int] | None = None  # the value and the id of the lease of the watched leader
        self._watch: asyncio.Future[None] | None = None  # ends when this leader no longer listens
        self._reached_etcd = False  # etcd has answered at least once
        self._served = False
        self._controller: Controller | None = None

    def read_again(self, load: Callable[[], Settings]) -> None:
        """Read the settings again, and apply changes of switches, now or when this controller leads.

        Errors change nothing.
        """
        try:
            settings = load()
            specs_of(settings)
        except SettingsError as error:
            log.error("SIGHUP: the settings are unchanged: %s", error)
            return
        self._settings = with_switches_of(settings, self._settings)
        if self._controller is not None:
            self._controller.operations.read_again(lambda: settings)

    async def run(self) -> None:
        try:
            while True:
                lease = await self._wait()
                try:
                    await self._unwatch()
                    await self._serve(lease)
                finally:
                    await self._release()
                    await lease.resign()
        finally:
            await self._unwatch()
            await self._release()
            await self._etcd.close()
            self._entrance.close()

    # Standing by.

    async def _wait(self) -> Lease:
        gate = self._entrance.gate
        server = self._server = Standby(self._config, lambda: self._leader, self._entrance.guard(self._config))
        await server.start()
        self._config = replace(self._config, listen=server.listen)  # if any port was allowed, keep this one from now on
        await self._serve_pages()
        self._leader = ""
        deadline = math.inf
        if not (self._settings.standby or self._served):
            deadline = time.monotonic() + self._settings.store_lease + PREDECESSOR_TIMEOUT
        while True:
            try:
                if lease := await self._try_to_lead():
                    return lease
            except EtcdError as error:
                if not self._reached_etcd:
                    raise StateError(f"{self._name}: {error}") from None
                log.warning("standing by: %s", error)
            if gate is not None:
                gate.users.refresh()
            if self._config.tls is not None:
                self._config.tls.current()  # problems are logged
            if self._leader and time.monotonic() >= deadline:
                raise StateError(
                    f"{self._name}: another controller serves, {self._leader}; give --standby to take over from it "
                    "when it ends"
                )
            await asyncio.sleep(POLL_INTERVAL)

    async def _serve_pages(self) -> None:
        """Serve the pages of a standby over HTTP. Raises ListenError or OSError."""
        if not self._settings.metrics and not self._settings.page:
            return
        from p4reduce_controller.standby.standby_web import standby_web

        guard = self._entrance.guard(self._config)
        self._web = standby_web(self._settings, self._config, lambda: self._leader, guard, self._tls)
        if self._web is not None:
            await self._web.start()
            self._settings = replace(self._settings, metrics=self._web.metrics, page=self._web.page)

    async def _try_to_lead(self) -> Lease | None:
        """Campaign for the lease: return it if nobody holds it, else None. Raises EtcdError."""
        found = await holder(self._etcd, self._key, timeout=1.0 if self._reached_etcd else self._switch_timeout)
        self._reached_etcd = True
        if found is not None and self._watched == found and self._watch is not None and self._watch.done():
            log.info("%s: %s no longer listens", self._name, self._leader)
            await self._etcd.revoke(found[1])
            found = None
        if found is None:
            lease = Lease(self._etcd, self._key)
            return lease if await lease.campaign(self._lease_value(), self._settings.store_lease) else None
        if found != self._watched or self._watch is None:
            await self._check_state()
            await self._unwatch()
            self._leader, listen = _parse_holder(found[0])
            self._watched, self._watch = found, asyncio.ensure_future(until_gone(listen))
            if self._settings.standby or self._served:
                served = {"listen": self._config.listen, "page": self._settings.page, "metrics": self._settings.metrics}
                self._on_standby({name: address for name, address in served.items() if address}, self._leader)
        return None

    async def _check_state(self) -> None:
        """Check early that this controller could use the stored state. Raises StateError or EtcdError."""
        state = self._state(Lease(self._etcd, self._key))
        await state.fetch()
        state.check()

    def _state(self, lease: Lease) -> EtcdState:
        return EtcdState(self._etcd, lease, f"{self._prefix}/state/", self._name)

    async def _unwatch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            await cancel_and_wait(watch)

    async def _release(self) -> None:
        """Release the ports for the service."""
        server, web, self._server, self._web = self._server, self._web, None, None
        await asyncio.gather(*(one.close() for one in (server, web) if one is not None))

    def _lease_value(self) -> str:
        return json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "listen": self._config.listen})

    # Serving.

    async def _serve(self, lease: Lease) -> None:
        """Serve until the lease is lost. Jobs go on, however it ends."""
        name = self._name
        log.info("%s: this controller holds the lease, term %d", name, lease.term)
        renewing = asyncio.ensure_future(lease.keep())
        serving = asyncio.ensure_future(self._lead(lease))
        losing = asyncio.ensure_future(lease.lost.wait())
        try:
            await asyncio.wait([serving, losing, renewing], return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
            elif renewing.done():
                renewing.result()
            log.warning("%s: this controller stands by from now on: %s", name, lease.why)
        except (SwitchUnavailable, EtcdUnavailable) as error:
            if not (self._settings.standby or self._served):
                raise error if isinstance(error, SwitchUnavailable) else StateError(f"{name}: {error}") from None
            log.warning("%s: this controller cannot serve: %s", name, error)
            await lease.resign()
            await asyncio.sleep(CAMPAIGN_BACKOFF)
        finally:
            for task in (serving, losing, renewing):
                await cancel_and_wait(task)

    async def _lead(self, lease: Lease) -> None:
        state = self._state(lease)
        try:
            await state.fetch()
        except EtcdUnavailable:
            raise
        except EtcdError as error:
            raise StateError(f"{self._name}: {error}") from None
        leadership = Leadership(state, self._entrance, self._config, lease.term, self._release, self._tls)
        begun = self._settings
        async with running(begun, self._switch_timeout, leadership) as controller:
            self._served, self._controller = True, controller
            if (now := self._settings) != begun:  # they were read again meanwhile
                controller.operations.read_again(lambda: now)
            try:
                self._on_ready(controller)
                await controller.failed.wait()
                assert controller.failure is not None
                raise controller.failure
            finally:
                self._controller = None


def _parse_holder(value: str) -> tuple[str, str]:
    """Return a text about the leader, and the address where it listens, from the value that it wrote with its lease."""
    try:
        known = json.loads(value)
        host, listen = str(known["host"]), str(known["listen"])
        address, _, port = listen.rpartition(":")
        reachable = f"{host}:{int(port)}" if address.strip("[]") in ("0.0.0.0", "::") else listen
        return f"at {listen} on {host}, process {known['pid']}", reachable
    except (ValueError, KeyError, TypeError):
        return "an unknown controller", "127.0.0.1:0"


async def until_gone(address: str) -> None:
    """Return once HOST:PORT refuses connections, having accepted one before. Timeouts do not count as refusals."""
    host, _, port = address.rpartition(":")
    met = False
    refusals = 0
    while refusals < _LISTEN_REFUSALS:
        try:
            reader, writer = await with_timeout(asyncio.open_connection(plain_host(host), int(port)), _CONNECT_TIMEOUT)
        except ConnectionRefusedError:
            refusals += met
        except (OSError, asyncio.TimeoutError):
            refusals = 0
        else:
            met, refusals = True, 0
            with contextlib.suppress(OSError):
                while await reader.read(4096):
                    pass
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        await asyncio.sleep(_LISTEN_PAUSE)
