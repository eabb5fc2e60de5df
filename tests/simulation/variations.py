# SPDX-License-Identifier: Apache-2.0
"""Variations of scenarios: tenants with quotas, ranks with the C worker, and the second of two roots as a spare.

Their random choices have a sequence of their own. So a seed without variations plays as it does without this file, and
with them it has the same jobs and faults.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from p4reduce import backends
from p4reduce.protocol import Membership, Operation
from p4reduce.protocol import Worker as PythonWorker
from p4reduce_controller.tenants.users import digest
from tests.simulation import threads
from tests.simulation.program import SLOTS
from tests.simulation.rank import JobPlan
from tests.support.protocol import c_worker

VARIATIONS = ("tenants", "c-worker", "spare")
QUOTAS = {"unlimited": {}, "small": {"slots": SLOTS // 2, "jobs": 2}, "single": {"jobs": 1, "priority": 1}}
"""Tenants, and their quotas. The first one gets the job that must succeed in the end."""
OPERATOR = "operator"


class Variations:
    """The variations of one scenario, which `names` names."""

    def __init__(self, names: frozenset[str], seed: int) -> None:
        if unknown := names - set(VARIATIONS):
            raise ValueError(f"variations {', '.join(unknown)}: accepted are {', '.join(VARIATIONS)}")
        self.option = f" --with {' '.join(sorted(names))}" if names else ""
        self.has_tenants, self._has_c, self.has_spare = (name in names for name in VARIATIONS)
        self._random = Random(f"variations of {seed}")

    def varied(self, plan: JobPlan, *, last: bool) -> JobPlan:
        """Return the plan of a job with a tenant and with ranks in C, if there are any."""
        tenant = self._random.choice(list(QUOTAS))
        in_c = frozenset(rank for rank in range(plan.world_size) if self._random.random() < 0.5)
        if self.has_tenants:
            tenant = next(iter(QUOTAS)) if last else tenant
            plan = replace(plan, tenant=tenant, token=token(tenant))
        return replace(plan, in_c=in_c) if self._has_c else plan

    def users_file(self, folder: Path) -> str:
        """Write a file with the tenants and an operator. Return its path, or "" without tenants."""
        if not self.has_tenants:
            return ""
        lines = []
        for name in (*QUOTAS, OPERATOR):
            role = "operator" if name == OPERATOR else "user"
            lines += [f"[users.{name}]", f'token_sha256 = "{digest(token(name))}"', f'role = "{role}"']
        for name, quota in QUOTAS.items():
            lines += [f"[tenants.{name}]", *(f"{key} = {value}" for key, value in quota.items())]
        path = folder / "users.toml"
        path.write_text("\n".join(lines) + "\n")
        return str(path)


def token(name: str) -> str:
    """Return the token of a tenant's user, or of the operator."""
    return f"the-token-of-{name}"


class CWorker(c_worker.Worker):
    """The C worker, as `PythonEngine` calls the Python one."""

    def submit(self, operation: Operation, now: float) -> int:  # type: ignore[override]
        member, values = self.membership, operation.data.size
        super().submit(operation, now)
        return max(1, min(member.slots, -(-values // (member.block_size * member.lanes))))


def _worker(membership: Membership) -> Any:
    """Return a worker for the rank that runs: in C if its plan says so."""
    return (CWorker if threads.here().local.get("in_c") else PythonWorker)(membership)


def replaced() -> list[tuple[Any, str, Any]]:
    """Return what is replaced, so that a rank's plan chooses its worker."""
    return [(backends, "Worker", _worker)]
