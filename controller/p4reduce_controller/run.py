# SPDX-License-Identifier: Apache-2.0
"""A controller from start to end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

from p4reduce_controller.jobs import Jobs
from p4reduce_controller.listening import ServiceConfig
from p4reduce_controller.program import Program, load_schema
from p4reduce_controller.schema import SettingsError
from p4reduce_controller.service import Service
from p4reduce_controller.settings import Settings, read
from p4reduce_controller.specs import SwitchSpec, specs_of
from p4reduce_controller.startup import LATECOMERS, start_switches
from p4reduce_controller.state import StateFile
from p4reduce_controller.switch import P4RuntimeSwitch


@asynccontextmanager
async def running(settings: Settings, switch_timeout: float) -> AsyncIterator[Service]:
    """A controller that serves. Raises SettingsError, PipelineError, StateError, SwitchError, ListenError or OSError.

    With a state file its jobs outlive it, unless the service is told not to keep them.
    """
    config = _service_config(settings)
    program = Program(load_schema(Path(settings.pipeline) if settings.pipeline else None, settings.mtu))
    specs, trees, tls = specs_of(settings), settings.trees(), settings.switch_tls()

    def make(spec: SwitchSpec, *, first: bool = False) -> P4RuntimeSwitch:
        election = settings.election if first else replace(settings.election, take_over=False)
        return P4RuntimeSwitch(spec.config, program, election, tls)

    switches = [make(spec, first=True) for spec in specs]
    async with AsyncExitStack() as ends:  # each comes about whatever the others raise, the last one here first
        state = ends.enter_context(closing(StateFile(Path(settings.state)))) if settings.state else None
        jobs = Jobs(
            program.layout,
            [switch.address for switch in switches],
            trees=trees,
            fixed=[spec.config.fixed for spec in specs],
            rejoin_time=settings.rejoin_time,
            default_slots=settings.slots,
            returns=state is not None,
            absence=lambda number: service.fabric.absence(number),
        )
        service = Service(switches, jobs, config, state)
        service.bind()
        ends.push_async_callback(service.fabric.close, lambda: service.has_kept_jobs)
        ends.push_async_callback(service.close)
        await ends.enter_async_context(_metrics(settings.metrics, service))
        service.restore()
        await start_switches(switches, service, switch_timeout)
        await service.find_children(min(switch_timeout, LATECOMERS))
        service.open(settings, make, specs)
        await service.start()
        yield service


def _service_config(settings: Settings) -> ServiceConfig:
    return ServiceConfig(
        listen=settings.listen,
        token=settings.token(),
        certificate=read(settings.tls_cert) if settings.tls_cert else None,
        key=read(settings.tls_key) if settings.tls_key else None,
        insecure=settings.insecure,
        lease=settings.lease,
    )


async def run(
    settings: Settings,
    switch_timeout: float,
    on_ready: Callable[[Service], None],
    again: Callable[[], Settings] | None = None,
) -> None:
    """Serves until SIGINT or SIGTERM. At SIGHUP, `again` reads the settings anew, for the switches among them.

    Jobs that a state file has carry on after SIGTERM, but not after SIGINT. Raises what the service failed with.
    """
    task = asyncio.current_task()
    assert task is not None
    handle = asyncio.get_running_loop().add_signal_handler
    for number in (signal.SIGINT, signal.SIGTERM):
        handle(number, task.cancel)
    try:
        async with running(settings, switch_timeout) as service:

            def end_jobs_too() -> None:
                service.keeps_jobs = False
                task.cancel()

            handle(signal.SIGINT, end_jobs_too)
            if again is not None:
                handle(signal.SIGHUP, service.read_again, again)
            on_ready(service)
            await service.over.wait()
            assert service.failure is not None
            raise service.failure
    except asyncio.CancelledError:
        return


@asynccontextmanager
async def _metrics(listen: str, service: Service) -> AsyncIterator[None]:
    if not listen:
        yield
        return
    from p4reduce_controller.metrics import Metrics

    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise SettingsError(f"--metrics {listen}: HOST:PORT is accepted, as 127.0.0.1:9090")
    metrics = Metrics(service.status)
    try:
        await metrics.start(host, int(port))
        yield
    finally:
        await metrics.close()
