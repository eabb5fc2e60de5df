# SPDX-License-Identifier: Apache-2.0
"""The whole system in virtual time keeps its invariants, whatever fails, and a seed always plays the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("greenlet", reason="blocking code in virtual time needs greenlet")
pytest.importorskip("p4reduce_targets.native.library").library()

from p4reduce_controller.jobs.tenancy import Tenancy  # noqa: E402
from tests.simulation import variations  # noqa: E402
from tests.simulation.scenario import Result, Scenario, play  # noqa: E402
from tests.simulation.site import Job  # noqa: E402
from tests.simulation.variations import VARIATIONS, CWorker  # noqa: E402

ROOT = Path(__file__).parents[2]
SIMULATED_SECONDS = 10_000_000
SEEDS_OF_DIGEST = (3, 4)
_SCRIPT = """
import sys
from tests.simulation.scenario import play
print(*[play(int(seed)).digest for seed in sys.argv[1:]])
"""


def check(result: Result) -> None:
    tail = "\n".join(result.tail[-60:])
    again = f"python -m tests.simulation --seed {result.seed}{result.variations}"
    assert result.error is None, f"{tail}\nstep {result.steps}: {result.error!r}\nagain: {again}"


@pytest.mark.parametrize("seed", range(5))
def test_a_scenario_keeps_all_invariants(seed: int) -> None:
    check(play(seed))


def test_a_seed_plays_the_same_in_any_process() -> None:
    def digests(hash_seed: str) -> str:
        command = [sys.executable, "-c", _SCRIPT, *map(str, SEEDS_OF_DIGEST)]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout

    here = " ".join(play(seed).digest for seed in SEEDS_OF_DIGEST)
    assert digests("1").strip() == digests("2").strip() == here


@pytest.mark.parametrize("seed", range(4))
def test_a_scenario_with_tenants_and_c_workers_keeps_all_invariants(seed: int) -> None:
    check(play(seed, idle=0.0, variations=VARIATIONS))


def test_variations_change_neither_jobs_nor_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """C workers send the same packets as Python ones: with one of them or the other, a seed plays the same."""
    expected, made = play(3, idle=0.0).digest, []
    monkeypatch.setattr(variations, "CWorker", lambda membership: made.append(0) or CWorker(membership))
    assert play(3, idle=0.0, variations=["c-worker"]).digest == expected
    assert made
    with pytest.raises(ValueError, match="variations colour: accepted are tenants, c-worker, spare"):
        play(3, variations=["colour"])


def test_a_quota_that_no_controller_checks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tenancy, "check", lambda *_: None)
    errors = (str(play(seed, idle=0.0, variations=["tenants"]).error) for seed in range(8))
    assert any("jobs of tenant" in error for error in errors)


class LostRoot(Scenario):
    """A scenario in which one of two roots is restarted while the only job's ranks add. Nothing else fails."""

    struck = 0

    def _begin_job(self, name: str) -> Job:
        return super()._begin_job(name) if name == "last" or not self.site.jobs else self.site.jobs[0]

    def _strike(self) -> None:
        ranks = [rank for job in self.site.jobs for rank in job.ranks]
        if self.site.faults or len(self.site.roots) == 1:
            return
        if not ranks or not all(rank.stage.startswith(("computing", "in allreduce")) for rank in ranks):
            self.world.after(0.3, self._strike)
            return
        LostRoot.struck += 1
        switch, seconds = self.random.choice(self.site.roots), self._duration()
        fault = self.site.strike("switch: restart", switch.name, seconds=seconds)
        switch.kill()
        self._for_a_while(fault, switch.start, seconds)


@pytest.mark.parametrize("seeds", [5, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("with_variations", [(), ("spare",)])
def test_a_job_goes_on_without_a_root(with_variations: tuple[str, ...], seeds: int) -> None:
    """`Rules` judges whether the job may end."""
    LostRoot.struck = 0
    for seed in range(seeds):
        check(play(seed, idle=0.0, scenario_class=LostRoot, variations=with_variations))
    assert LostRoot.struck > seeds // 6


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_scenarios() -> None:
    """Mutants of the code fail here: see `tests/support/mutants.py`."""
    for seed in range(100):
        check(play(seed))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_scenarios_with_variations() -> None:
    for seed in range(50):
        check(play(seed, variations=VARIATIONS))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_million_simulated_seconds() -> None:
    simulated, seed = 0.0, 1000
    while simulated < SIMULATED_SECONDS:
        result = play(seed)
        check(result)
        simulated += result.seconds
        seed += 1
