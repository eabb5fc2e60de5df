# SPDX-License-Identifier: Apache-2.0
"""Requests of users and operators: they end jobs, query their slots, and change the switches.

A request that fails raises Refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import grpc

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.base.tasks import Interrupted
from p4reduce_controller.fabric.changes import other_changes, spec_of, specs_of
from p4reduce_controller.fabric.fabric import Fabric
from p4reduce_controller.fabric.losses import chosen_to_lose, set_loss
from p4reduce_controller.fabric.slots import MOST_A_REQUEST, slots_of
from p4reduce_controller.service.effect_runner import EffectRunner
from p4reduce_controller.settings.settings import Settings
from p4reduce_controller.store.state_names import StateError
from p4reduce_controller.switches.aggregator import SwitchError
from p4reduce_controller.tenants.access import Caller
from p4reduce_controller.tenants.gate import Refused

log = logging.getLogger(__name__)

LONGEST_REASON = 500
INVALID = grpc.StatusCode.INVALID_ARGUMENT
FAILED = grpc.StatusCode.FAILED_PRECONDITION  # UNAVAILABLE would mean the controller
# Work is a function and not a coroutine, since it may be cancelled before its turn and then never be started.
_Work = Callable[[], Coroutine[Any, Any, list[str]]]


class Operations:
    """The operations that clients can call. `settings`: the base of the settings of new switches."""

    def __init__(self, runner: EffectRunner, fabric: Fabric) -> None:
        self.settings: Settings | None = None
        self.fabric = fabric
        self._runner = runner
        self._jobs = runner.jobs
        self._changing = asyncio.Lock()
        self._slots = asyncio.Lock()  # one request at a time, so that they cannot keep the switches busy

    async def abort(self, request: pb.AbortJobRequest, caller: Caller, peer: str) -> pb.AbortJobReply:
        reason = " ".join(request.reason.split())
        if len(reason) > LONGEST_REASON or not reason.isprintable():
            raise Refused(INVALID, f"reason: accepted are up to {LONGEST_REASON} printable characters")
        asked: dict[str, Any] = {"job": request.job, "of": request.tenant, "reason": reason, "peer": peer}
        try:
            tenant = self._jobs.end(request.job, caller, request.tenant, reason)
        except LookupError as error:
            self._runner.audit.note(caller, "abort", str(error), refused=True, **asked)
            raise Refused(grpc.StatusCode.NOT_FOUND, str(error)) from None
        self._runner.run()
        self._runner.audit.note(caller, "abort", "ok", **{**asked, "of": tenant})
        return pb.AbortJobReply(tenant=tenant)

    async def slots(self, request: pb.SlotsRequest, caller: Caller, _: str) -> pb.SlotsReply:
        try:
            job = self._jobs.named(request.job, self._jobs.owner_of(request.job, caller, request.tenant))
        except LookupError as error:
            raise Refused(grpc.StatusCode.NOT_FOUND, str(error)) from None
        if job is None:
            raise Refused(FAILED, f"job {request.job!r} is in the queue, and on no switch yet")
        if request.first >= job.slots:
            raise Refused(INVALID, f"first={request.first}: accepted are 0 to {job.slots - 1}, the job's slots")
        if request.count > MOST_A_REQUEST:
            raise Refused(INVALID, f"count={request.count}: accepted are up to {MOST_A_REQUEST}")
        if not job.placements:
            raise Refused(FAILED, f"job {job.name!r} is {job.state.value}, and on no switch yet")
        async with self._slots:
            try:
                return await slots_of(
                    job, self.fabric.inventory.switches, request.first, request.count or MOST_A_REQUEST
                )
            except (SwitchError, Interrupted) as error:
                raise Refused(FAILED, str(error)) from None

    async def lose(self, request: pb.SetLossRequest, caller: Caller, peer: str) -> pb.SetLossReply:
        try:
            chosen = chosen_to_lose(self.fabric.inventory, request)
        except ValueError as wrong:
            raise Refused(INVALID, f"{wrong}; nothing was changed") from None
        # Complete the request even if the caller has gone, so that no switch has an unknown part of it.
        error = await asyncio.shield(self._runner.tasks.start(set_loss(request, chosen), "loss"))
        said: dict[str, Any] = {"switch": request.switch, "port": request.port, "rate": request.rate, "peer": peer}
        self._runner.audit.note(caller, "set loss", str(error or "ok"), **said)
        if error is not None:
            raise Refused(FAILED, str(error))
        return pb.SetLossReply()

    # Changes of switches.

    async def add(self, request: pb.AddSwitchRequest, caller: Caller, peer: str) -> pb.SwitchesReply:
        return await self._change("add a switch", partial(self._add, request.settings), caller, peer)

    async def drain(self, request: pb.DrainSwitchRequest, caller: Caller, peer: str) -> pb.SwitchesReply:
        what = "undo draining" if request.undo else "drain a switch"
        work = partial(_later, self.fabric.drain, request.name, undo=request.undo)
        return await self._change(what, work, caller, peer)

    async def remove(self, request: pb.RemoveSwitchRequest, caller: Caller, peer: str) -> pb.SwitchesReply:
        what = "remove a switch now" if request.now else "remove a switch"
        work = partial(_later, self.fabric.remove, request.name, now=request.now)
        return await self._change(what, work, caller, peer)

    def read_again(self, load: Callable[[], Settings]) -> None:
        """Read the settings again, and apply changes of switches. Errors are logged, and change nothing."""
        self._runner.tasks.start(self._read_again(load), "reading the settings again")

    async def _read_again(self, load: Callable[[], Settings]) -> None:
        try:
            for line in await self.reload(load()) or ["no switch has changed"]:
                log.warning("SIGHUP: %s", line)
        except (SettingsError, SwitchError, Interrupted) as error:
            log.error("SIGHUP: the settings are unchanged: %s", error)
        except Exception:  # the controller goes on, whatever a file contains
            log.exception("SIGHUP: the settings are unchanged")

    async def reload(self, settings: Settings) -> list[str]:
        """Apply settings that were read again. Raises SettingsError."""
        async with self._changing:
            specs = specs_of(settings)
            assert self.settings is not None
            changed = other_changes(self.settings, settings)
            said = [f"{key} has changed: restart the controller to apply it" for key in changed]
            return await self._stored(said + await self.fabric.reload(specs))

    async def _add(self, text: str) -> list[str]:
        if self.settings is None:
            raise SettingsError("the controller has no settings")
        return await self.fabric.add(spec_of(text, self.settings))

    async def _change(self, what: str, work: _Work, caller: Caller, peer: str) -> pb.SwitchesReply:
        """Make a change, even if the caller goes away meanwhile. Only one is made at a time."""
        said = await asyncio.shield(self._runner.tasks.start(self._changed(work), "switches"))
        outcome = str(said) if isinstance(said, Exception) else "; ".join(said)
        self._runner.audit.note(caller, what, outcome, peer=peer)
        if isinstance(said, Exception):
            raise Refused(FAILED, outcome)
        return pb.SwitchesReply(said=said)

    async def _changed(self, work: _Work) -> list[str] | Exception:
        async with self._changing:
            try:
                said = await work()
            except (SettingsError, SwitchError, Interrupted) as error:
                return error
            except Exception as error:  # the controller goes on, whatever a request contains
                log.exception("cannot change the switches")
                return SettingsError(f"{type(error).__name__}: {error}")
            for line in said:
                log.warning("%s", line)
            return await self._stored(said)

    async def _stored(self, said: list[str]) -> list[str]:
        self._runner.run()
        try:
            await self._runner.saver.save()
        except StateError as error:
            said.append(f"this could not be stored, so a restarted controller will not know of it: {error}")
        return said


async def _later(change: Callable[..., list[str]], *arguments: Any, **options: Any) -> list[str]:
    return change(*arguments, **options)
