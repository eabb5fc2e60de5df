# SPDX-License-Identifier: Apache-2.0
"""Experiments over points that are chosen, and programs of one's own: what is accepted, and what comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("mininet", reason="needs Mininet")

from p4reduce.errors import P4ReduceError
from p4reduce_topos.emulation.scripts import command_of
from p4reduce_topos.experiments.selection import with_options
from p4reduce_topos.experiments.series import EXPERIMENTS
from p4reduce_topos.faults import messages
from p4reduce_topos.faults.catalogue import FAULTS
from p4reduce_topos.faults.injection import violations


def test_values_and_sizes_are_chosen() -> None:
    made = with_options(EXPERIMENTS["density"], "1,0.01", "p4reduce,gloo", workers="8", numel="4MiB", rate="50mbit")
    points = made.points()
    assert [(one.density, one.system) for one in points] == [
        (1, "p4reduce"), (1, "gloo"), (0.01, "p4reduce"), (0.01, "gloo"),
    ]  # fmt: skip
    assert {(one.workers, one.numel, one.rate) for one in points} == {(8, 1 << 20, 50_000_000)}
    assert with_options(EXPERIMENTS["density"], "", "", workers="") == EXPERIMENTS["density"]
    assert [one.rate for one in with_options(EXPERIMENTS["rate"], "1gbit", "p4reduce").points()] == [10**9]


@pytest.mark.parametrize(
    ("values", "systems", "fixed", "says"),
    [
        ("2", "", {}, "--values 2: accepted for density is 0 to 1"),
        ("much", "", {}, "--values much: accepted for density are numbers"),
        ("0.1,,1", "", {}, "accepted is one or several, separated by commas"),
        ("", "mpi", {}, "--systems mpi: accepted are p4reduce, gloo"),
        ("", "", {"density": "0.1"}, "--density 0.1: the experiment varies it; give its values with --values"),
        ("", "", {"workers": "99"}, "--workers 99: accepted for workers is 1 to 32"),
        ("", "", {"rate": "fast"}, "--rate fast"),
    ],
)
def test_what_is_not_accepted(values: str, systems: str, fixed: dict[str, str], says: str) -> None:
    with pytest.raises((P4ReduceError, ValueError), match=says):
        with_options(EXPERIMENTS["density"], values, systems, **fixed)


def test_scripts_run_in_python_and_programs_as_they_are(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    assert command_of(f"{script} --name 'a b'")[1:] == [str(script), "--name", "a b"]
    assert command_of("env FOO=1") == ["env", "FOO=1"]
    for text, says in (
        (str(tmp_path / "none.py"), "there is no such file"),
        ("no-such-program --x", "no such program on PATH"),
        ("'open", "No closing quotation"),
        ("  ", "needs a script or a program"),
    ):
        with pytest.raises(P4ReduceError, match=says):
            command_of(text)


def test_verdicts_are_in_words() -> None:
    killed, paused = FAULTS["worker-killed"], FAULTS["worker-paused"]
    gone = {"error": "JobAborted", "message": "rank 1 has gone"}
    right = {"right": 60, "digest": "ab", "retransmissions": 3}
    assert messages.describe_end(right) == "60 sums, all right; 3 packets were sent again"
    assert messages.describe_end(gone) == "JobAborted: rank 1 has gone"
    assert messages.describe_end({"wrong": 5, "call": 2}) == "wrong sums: 5 elements of call 3"
    assert messages.describe_end({}) == "it ended without a report"
    ends = {0: gone, 2: gone}
    assert messages.verdict("worker-killed", killed, ends, violations(killed, ends)) == (
        "worker-killed: it ended as it must, in JobAborted at every rank that is left, which says 'rank 1' (2)."
    )
    ends = {0: right, 1: gone}
    assert messages.verdict("worker-paused", paused, ends, violations(paused, ends)) == (
        "worker-paused: it must end in right sums at every rank, but: rank 1: JobAborted: rank 1 has gone."
    )
