# SPDX-License-Identifier: Apache-2.0
"""The fit finds costs that are known, and the program runs."""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p4reduce_bench.allreduce.grid import Case
from tests.measurements.cost_model import TERMS, Model, Quantities, fit, quantities

COSTS = {"operation": 2e-4, "scan": 5e-11, "packet": 1.5e-6, "byte": 4e-10, "round": 6e-5}
CASES = [
    quantities(Case(workers, numel, "float32", density, "random", "block"), slots, 2)
    for workers, numel, density, slots in product((2, 4), (1 << 14, 1 << 18, 1 << 20), (1, 0.3, 0.05, 0), (16, 64, 256))
]


def times(costs: dict[str, float], noise: float = 0.0) -> list[float]:
    random = np.random.default_rng(1)
    model = Model(costs, 0, 0, 0)
    return [model.seconds(case) * float(1 + noise * random.standard_normal()) for case in CASES]


def test_what_a_case_takes() -> None:
    """Two workers with 8 blocks of 64, all of them not zero; one slot of 4 lanes announces and then has 2 rounds."""
    found = quantities(Case(2, 512, "float32", 1.0, "all", "block"), 1, 64)
    assert found == {"operation": 1, "scan": 2 * 512 * 4, "packet": 2 * 3, "byte": 2 * 2 * 512 * 4, "round": 3}


def test_zeros_are_scanned_and_announced() -> None:
    found = quantities(Case(2, 512, "float32", 0.0, "all", "block"), 2, 64)
    assert found == {"operation": 1, "scan": 2 * 512 * 4, "packet": 2 * 2, "byte": 0, "round": 1}


def test_more_processes_than_processors() -> None:
    case = Case(4, 512, "float32", 1.0, "all", "block")
    alone, crowded = quantities(case, 1, 5), quantities(case, 1, 2)
    assert crowded == {**alone, "operation": 3 * alone["operation"], "scan": 3 * alone["scan"]}


@settings(max_examples=50)
@given(st.fixed_dictionaries({term: st.floats(cost / 3, cost * 3) for term, cost in COSTS.items()}))
def test_known_costs_are_found(costs: dict[str, float]) -> None:
    model = fit(CASES, times(costs))
    assert model.costs == pytest.approx(costs, rel=1e-6)
    assert model.r_squared == pytest.approx(1)
    assert model.median_error < 1e-6
    assert model.unseen_median_error < 1e-6


def test_and_within_noise() -> None:
    model = fit(CASES, times(COSTS, noise=0.03))
    assert model.costs == pytest.approx(COSTS, rel=0.25)
    assert 0.01 < model.median_error < 0.03
    assert model.unseen_median_error >= model.median_error * 0.9
    assert model.r_squared > 0.98


@pytest.mark.parametrize("term", TERMS)
def test_what_costs_nothing_is_not_negative(term: str) -> None:
    model = fit(CASES, times({**COSTS, term: 0.0}, noise=0.03))
    assert min(model.costs.values()) >= 0
    share = [model.costs[term] * case[term] / model.seconds(case) for case in CASES]
    assert np.median(share) < 0.03


def test_a_wrong_law_does_not_fit() -> None:
    assert fit(CASES, [seconds**2 for seconds in times(COSTS)]).median_error > 0.2


def test_too_few_cases_are_refused() -> None:
    few: list[Quantities] = CASES[:3]
    with pytest.raises(ValueError, match="3 cases and 3 times: 5 or more are needed"):
        fit(few, [1.0] * 3)


@pytest.mark.slow
def test_the_program(tmp_path: Path) -> None:
    json_file, plot = tmp_path / "made" / "model.json", tmp_path / "made" / "model.png"
    command = [sys.executable, "-m", "tests.measurements.cost_model", "--sizes", "16KiB,64KiB",
               "--density", "1,0.1,0", "--workers", "2", "--slots", "16,64", "--repeat", "2",
               "--json", str(json_file), "--plot", str(plot)]  # fmt: skip
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    made = json.loads(json_file.read_text())
    assert len(made["rows"]) == 12
    assert made["costs"].keys() == TERMS.keys() == made["units"].keys()
    assert all(row["measured_s"] > 0 and row["model_s"] >= 0 for row in made["rows"])
    assert plot.read_bytes().startswith(b"\x89PNG")
