# SPDX-License-Identifier: Apache-2.0
"""What the service does for people: it ends jobs, looks into their slots, and changes which switches there are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

import grpc

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.job import Job
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.seeing.slots import MOST, slots_of
from p4reduce_controller.settings.schema import SettingsError
from p4reduce_controller.settings.settings import Settings
from p4reduce_controller.store.state_names import StateError
from p4reduce_controller.switches.aggregator import Aggregator, SwitchError
from p4reduce_controller.switches.fabric import Fabric
from p4reduce_controller.switches.specs import other_changes, spec_of, specs_of
from p4reduce_controller.tasks import Interrupted, Tasks
from p4reduce_controller.tenants.access import Caller
from p4reduce_controller.tenants.audit import Audit

log = logging.getLogger(__name__)

LONGEST_REASON = 500


class Operations:
    """Part of `service.Service`."""

    _jobs: Jobs
    _switches: Mapping[int, Aggregator]
    fabric: Fabric
    _tasks: Tasks
    _audit: Audit

    if TYPE_CHECKING:

        def _carry_out(self) -> None: ...

        async def _save(self) -> None: ...

        async def _caller(self, context: Any) -> Caller: ...

        @property
        def doubt(self) -> str: ...

    def __init__(self) -> None:
        self.settings: Settings | None = None  # to add switches by
        self._changing = asyncio.Lock()
        self._slots = asyncio.Lock()  # one request after the other, so that they cannot keep the switches busy

    async def AbortJob(self, request: pb.AbortJobRequest, context: Any) -> pb.AbortJobReply:
        await self._be_sure(context)
        caller = await self._caller(context)
        reason = " ".join(request.reason.split())
        if len(reason) > LONGEST_REASON or not reason.isprintable():
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"reason: accepted are up to {LONGEST_REASON} printable characters"
            )
        asked = {"job": request.job, "of": request.tenant, "reason": reason, "peer": context.peer()}
        try:
            tenant = self._jobs.end(request.job, caller, request.tenant, reason)
        except LookupError as error:
            self._audit.note(caller, "abort", str(error), refused=True, **asked)
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
            raise AssertionError from None
        self._carry_out()
        self._audit.note(caller, "abort", "ok", **{**asked, "of": tenant})
        return pb.AbortJobReply(tenant=tenant)

    async def Slots(self, request: pb.SlotsRequest, context: Any) -> pb.SlotsReply:
        job = await self._named(request.job, request.tenant, context)
        if request.first >= job.slots:
            why = f"first={request.first}: accepted are 0 to {job.slots - 1}, the job's slots"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)
        if request.count > MOST:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"count={request.count}: accepted are up to {MOST}")
        if not job.placements:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, f"job {job.name!r} is {job.state.value}, and on no switch yet"
            )
        async with self._slots:
            try:
                return await slots_of(job, self._switches, request.first, request.count or MOST)
            except (SwitchError, Interrupted) as error:  # UNAVAILABLE would be the controller
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
                raise AssertionError from None

    async def _be_sure(self, context: Any) -> None:
        """That it is we who serve."""
        if self.doubt:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"this controller stands by: {self.doubt}")

    async def _named(self, name: str, tenant: str, context: Any) -> Job:
        """One that the caller may end."""
        await self._be_sure(context)
        try:
            job = self._jobs.named(name, self._jobs.owner_of(name, await self._caller(context), tenant))
        except LookupError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
            raise AssertionError from None
        if job is None:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, f"job {name!r} is in the queue, and on no switch yet"
            )
            raise AssertionError
        return job

    async def AddSwitch(self, request: pb.AddSwitchRequest, context: Any) -> pb.SwitchesReply:
        return await self._change(context, "add a switch", lambda: self._add(request.settings))

    async def DrainSwitch(self, request: pb.DrainSwitchRequest, context: Any) -> pb.SwitchesReply:
        what = "undo draining" if request.undo else "drain a switch"
        return await self._change(context, what, lambda: _now(self.fabric.drain, request.name, undo=request.undo))

    async def RemoveSwitch(self, request: pb.RemoveSwitchRequest, context: Any) -> pb.SwitchesReply:
        what = "remove a switch now" if request.now else "remove a switch"
        return await self._change(context, what, lambda: _now(self.fabric.remove, request.name, now=request.now))

    def read_again(self, load: Callable[[], Settings]) -> None:
        """The settings; their switches take effect. Errors are logged, and change nothing."""
        self._tasks.start(self._read_again(load), "reading the settings again")

    async def _read_again(self, load: Callable[[], Settings]) -> None:
        try:
            for line in await self.reload(load()) or ["no switch has changed"]:
                log.warning("SIGHUP: %s", line)
        except (SettingsError, SwitchError, Interrupted) as error:
            log.error("SIGHUP: the settings are unchanged: %s", error)
        except Exception:  # whatever a file says, the controller goes on
            log.exception("SIGHUP: the settings are unchanged")

    async def reload(self, settings: Settings) -> list[str]:
        """The settings were read again. Raises SettingsError."""
        async with self._changing:
            specs = specs_of(settings)
            assert self.settings is not None
            said = [
                f"{key} has changed: restart the controller to apply it"
                for key in other_changes(self.settings, settings)
            ]
            said += await self.fabric.reload(specs)
            self._carry_out()
            try:
                await self._save()
            except StateError as error:
                said.append(f"this could not be stored, so a restarted controller will not know of it: {error}")
            return said

    async def _add(self, text: str) -> list[str]:
        if self.settings is None:
            raise SettingsError("the controller has no settings")
        return await self.fabric.add(spec_of(text, self.settings))

    async def _change(
        self, context: Any, what: str, work: Callable[[], Coroutine[Any, Any, list[str]]]
    ) -> pb.SwitchesReply:
        """To its end, even where the caller has gone, and one after the other."""
        await self._be_sure(context)
        caller = await self._caller(context)
        said = await asyncio.shield(self._tasks.start(self._changed(work), "switches"))
        outcome = str(said) if isinstance(said, Exception) else "; ".join(said)
        self._audit.note(caller, what, outcome, peer=context.peer())
        if isinstance(said, Exception):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(said))
            raise AssertionError
        return pb.SwitchesReply(said=said)

    async def _changed(self, work: Callable[[], Coroutine[Any, Any, list[str]]]) -> list[str] | Exception:
        async with self._changing:
            try:
                said = await work()
            except (SettingsError, SwitchError, Interrupted) as error:
                return error
            except Exception as error:  # whatever a request says, the controller goes on
                log.exception("cannot change the switches")
                return SettingsError(f"{type(error).__name__}: {error}")
            for line in said:
                log.warning("%s", line)
            self._carry_out()
            try:
                await self._save()
            except StateError as error:
                said.append(f"this could not be stored, so a restarted controller will not know of it: {error}")
            return said


async def _now(change: Callable[..., list[str]], *arguments: Any, **options: Any) -> list[str]:
    return change(*arguments, **options)
