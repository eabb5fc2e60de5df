# SPDX-License-Identifier: Apache-2.0
"""A controller from start to end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

from p4reduce_controller.jobs import Jobs
from p4reduce_controller.listening import ServiceConfig
from p4reduce_controller.program import Program, load_schema
from p4reduce_controller.service import Service
from p4reduce_controller.settings import Settings, read
from p4reduce_controller.startup import LATECOMERS, start_switches
from p4reduce_controller.state import StateFile
from p4reduce_controller.switch import P4RuntimeSwitch
from p4reduce_controller.tracing import configured


@asynccontextmanager
async def running(settings: Settings, switch_timeout: float) -> AsyncIterator[Service]:
    """A controller that serves. Raises SettingsError, PipelineError, StateError, SwitchError, ListenError or OSError.

    With a state file its jobs outlive it, unless the service is told not to keep them.
    """
    config = _service_config(settings)
    program = Program(load_schema(Path(settings.pipeline) if settings.pipeline else None, settings.mtu))
    configs, trees = settings.switch_configs(), settings.trees()
    tls = settings.switch_tls()
    switches = [P4RuntimeSwitch(one, program, settings.election, tls) for one in configs]
    async with AsyncExitStack() as ends:  # each comes about whatever the others raise, the last one here first
        state = ends.enter_context(closing(StateFile(Path(settings.state)))) if settings.state else None
        jobs = Jobs(
            program.layout,
            [switch.address for switch in switches],
            trees=trees,
            fixed=[one.fixed for one in configs],
            rejoin_time=settings.rejoin_time,
            default_slots=settings.slots,
            returns=state is not None,
            absence=lambda number: switches[number].absence,
        )
        traces = configured()
        ends.push_async_callback(asyncio.to_thread, traces.close)
        service = Service(switches, jobs, config, state, traces)
        service.bind()
        for switch in reversed(switches):
            ends.push_async_callback(_close, switch, service)
        ends.push_async_callback(service.close)
        await ends.enter_async_context(_web(settings, service))
        service.restore()
        await start_switches(switches, service, switch_timeout)
        await service.find_children(min(switch_timeout, LATECOMERS))
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


async def _close(switch: P4RuntimeSwitch, service: Service) -> None:
    await switch.close(keep=service.has_kept_jobs)


async def run(settings: Settings, switch_timeout: float, on_ready: Callable[[Service], None]) -> None:
    """Serves until SIGINT or SIGTERM.

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
            on_ready(service)
            await service.over.wait()
            assert service.failure is not None
            raise service.failure
    except asyncio.CancelledError:
        return


@asynccontextmanager
async def _web(settings: Settings, service: Service) -> AsyncIterator[None]:
    if not settings.metrics and not settings.page:
        yield
        return
    from p4reduce_controller.metrics import Metrics
    from p4reduce_controller.watch import Watch
    from p4reduce_controller.web import Web, WebConfig

    config = WebConfig(
        page=settings.page,
        metrics=settings.metrics,
        token=settings.token(),
        certificate=settings.tls_cert,
        key=settings.tls_key,
        insecure=settings.insecure,
    )
    watch = Watch(service.status, service.reports.ports)
    service.telemetry.registry.register(Metrics(lambda: watch.latest))
    web = Web(config, watch, service.telemetry.registry, service)
    try:
        await web.start()
        service.page, service.metrics = web.page, web.metrics
        watch.start()
        yield
    finally:
        await watch.close()
        await web.close()
