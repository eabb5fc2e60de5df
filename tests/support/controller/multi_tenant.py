# SPDX-License-Identifier: Apache-2.0
"""A running controller with users, tokens and an audit log."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.channel import code_of
from p4reduce_controller.base.listening import ServiceConfig
from tests.support.controller.running import Loop, Running
from tests.support.controller.users import user

USERS = f"""
[tenants.alice]
jobs = 2
ranks = 5
calls_per_s = 0.2

[tenants.carol]
joins_per_s = 0.04
{user("alice", "a")}
{user("bob", "b")}
{user("carol", "c")}
{user("olga", "o", role="operator")}
{user("vera", "v", role="viewer", tenant="alice")}
"""


class MultiTenantService(Running):
    """A service with users. `audit` reads its audit log."""

    def __init__(self, loop: Loop, folder: Path, text: str = USERS, **options: Any) -> None:
        self.users = folder / "users.toml"
        self.users.write_text(text)
        self.log = folder / "audit.jsonl"
        super().__init__(loop, ServiceConfig(listen="127.0.0.1:0"), users=self.users, audit=self.log, **options)

    @property
    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def status(self, token: str | None) -> pb.StatusReply:
        reply: pb.StatusReply = self.ask("Status", pb.StatusRequest(), token)
        return reply

    def end(self, token: str, job: str, tenant: str = "") -> str:
        return str(self.ask("AbortJob", pb.AbortJobRequest(job=job, tenant=tenant, reason="enough"), token).tenant)

    def lose(self, token: str) -> None:
        self.ask("SetLoss", pb.SetLossRequest(port=1, rate=0.5), token)


def refused(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        call()
    assert isinstance(error.value, grpc.Call)
    return error.value.code(), str(error.value.details())


def refused_or_none(call: Callable[[], object]) -> grpc.StatusCode | None:
    try:
        call()
    except grpc.RpcError as error:
        return code_of(error)
    return None
