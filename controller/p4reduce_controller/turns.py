# SPDX-License-Identifier: Apache-2.0
"""Several controllers, of which one serves: each waits for its turn, has it as long as its lease, and waits again."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from p4reduce_controller.aggregator import SwitchUnavailable
from p4reduce_controller.etcd.client import Etcd, EtcdError, EtcdUnavailable
from p4reduce_controller.etcd.lease import Lease, holder
from p4reduce_controller.etcd.settings import credentials, parse_store
from p4reduce_controller.etcd.state import EtcdState
from p4reduce_controller.run import Turn, running, service_config
from p4reduce_controller.service import Service
from p4reduce_controller.settings import Settings, read
from p4reduce_controller.standby import Standby
from p4reduce_controller.state import StateError

log = logging.getLogger(__name__)

LOOK = 0.2  # seconds between a standby's looks at who serves
PREDECESSOR = 3.0  # beyond the lease, for one that has just died
ASIDE = 2.0  # for a controller that could not serve, so that another may
OnStandby = Callable[[str, str], None]


class Turns:
    """One controller's, until it is cancelled or fails. Raises what `running` raises, and StateError."""

    def __init__(
        self, settings: Settings, switch_timeout: float, on_ready: Callable[[Service], None], on_standby: OnStandby
    ) -> None:
        """`on_standby` is called with where we listen and who serves. Raises SettingsError."""
        members, self._prefix = parse_store(settings.store)
        how = credentials(
            members,
            *(settings.store_ca, settings.store_cert, settings.store_key),
            read=read,
            insecure=settings.store_insecure,
        )
        self._etcd = Etcd(members, how)
        self._settings = settings
        self._switch_timeout = switch_timeout
        self._on_ready = on_ready
        self._on_standby = on_standby
        self._key = f"{self._prefix}/serving"
        self._config = service_config(settings)
        self._other = ""
        self._met = False  # etcd has answered once
        self._served = False

    async def run(self) -> None:
        try:
            while True:
                lease = await self._wait()
                try:
                    await self._serve(lease)
                finally:
                    await lease.give_back()
        finally:
            await self._etcd.close()

    # Standing by.

    async def _wait(self) -> Lease:
        """Until the lease is ours."""
        began = time.monotonic()
        told = ""
        async with Standby(self._config, lambda: self._other) as server:
            self._config = replace(self._config, listen=server.listen)  # where it was any port, this one for good
            while True:
                try:
                    said = await holder(self._etcd, self._key, within=1.0 if self._met else self._switch_timeout)
                    self._met = True
                    if said is None:
                        lease = Lease(self._etcd, self._key)
                        if await lease.take(self._said(), self._settings.store_lease):
                            return lease
                        continue
                except EtcdError as error:
                    if not self._met or not isinstance(error, EtcdUnavailable):
                        raise StateError(f"--store {self._settings.store}: {error}") from None
                    log.warning("standing by: %s", error)
                    await asyncio.sleep(LOOK)
                    continue
                self._other = _who(said)
                waited = time.monotonic() - began
                if not (self._settings.standby or self._served) and waited > self._settings.store_lease + PREDECESSOR:
                    raise StateError(
                        f"--store {self._settings.store}: another controller serves, {self._other}; give --standby to "
                        "take over from it when it ends"
                    )
                if told != self._other and (self._settings.standby or self._served):
                    self._on_standby(server.listen, self._other)
                    told = self._other
                await asyncio.sleep(LOOK)

    def _said(self) -> str:
        return json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "listen": self._config.listen})

    # Serving.

    async def _serve(self, lease: Lease) -> None:
        """Until the lease is lost. Jobs carry on, however it ends."""
        name = f"--store {self._settings.store}"
        log.info("%s: the lease is ours, term %d", name, lease.term)
        renewing = asyncio.ensure_future(lease.keep())
        serving = asyncio.ensure_future(self._turn(lease, name))
        losing = asyncio.ensure_future(lease.lost.wait())
        try:
            await asyncio.wait([serving, losing, renewing], return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
            elif renewing.done():
                renewing.result()
            log.warning("%s: this controller stands by from now on: %s", name, lease.why)
        except SwitchUnavailable as error:
            if not (self._settings.standby or self._served):
                raise
            log.warning("%s: this controller cannot serve: %s", name, error)
            await lease.give_back()
            await asyncio.sleep(ASIDE)
        finally:
            serving.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await serving
            for task in (renewing, losing):
                task.cancel()
            await asyncio.gather(renewing, losing, return_exceptions=True)

    async def _turn(self, lease: Lease, name: str) -> None:
        state = EtcdState(self._etcd, lease, f"{self._prefix}/state/", name)
        await state.fetch()
        turn = Turn(state, self._config, lease.term, lambda: lease.doubt)
        async with running(self._settings, self._switch_timeout, turn) as service:
            self._served = True
            self._on_ready(service)
            await service.over.wait()
            assert service.failure is not None
            raise service.failure


def _who(said: str) -> str:
    try:
        known = json.loads(said)
        return f"at {known['listen']} on {known['host']}, process {known['pid']}"
    except (ValueError, KeyError, TypeError):
        return "one that says nothing of itself"
