# SPDX-License-Identifier: Apache-2.0
"""Switch, controller and ranks as the commands that users run, with all ranks behind one UDP port."""

from __future__ import annotations

import pytest

from tests.support.cluster.rank import Call
from tests.support.cluster.stack import go_on, job, over_udp

STEPS = [Call((2000,), seed=seed, pause=0.02) for seed in range(5)]


def test_a_switch_that_restarts_costs_its_jobs_but_not_the_controller() -> None:
    pytest.importorskip("p4reduce_targets.sim")
    with over_udp() as stack:
        with stack.ranks(STEPS, job="lost", world_size=3, repeat=True) as ranks:
            go_on(ranks)
            places = [place for member in job(stack, "lost")["members"] for place in member["places"]]
            assert {(place["port"], place["ip"], place["mac"]) for place in places} == {
                (1, "127.0.0.1", "02:00:7f:00:00:01")
            }
            assert len({place["udp_port"] for place in places}) == 3
            stack.restart_switch(0)
            for last in ranks.wait_for_ends().values():
                assert last.get("error") == "JobAborted", last
                assert "was restarted and lost the job's state" in last["message"]
        with stack.ranks(STEPS, job="lost", world_size=2) as ranks:
            ranks.end_well()
        status = stack.status()
        assert (status["switches"][0]["connected"], status["jobs_aborted"]) == (True, 1)
