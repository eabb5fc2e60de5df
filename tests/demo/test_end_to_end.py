# SPDX-License-Identifier: Apache-2.0
"""`p4reduce demo` as a user runs it, over the compiled P4 program."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from p4reduce_targets.native.library import LibraryMissing, library
from tests.support.interruption import start

SMALL = ("--workers", "2", "--steps", "4", "--json")


def demo(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run the demo to its end, and return its summary."""
    process = start("", "demo", *arguments, "--plot", str(folder / "demo.png"), errors=subprocess.PIPE)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    summary: dict[str, Any] = json.loads(output)
    return summary


@pytest.mark.slow
def test_several_switches_share_the_gradients(tmp_path: Path) -> None:
    summary = demo(tmp_path, *SMALL, "--aggregators", "2")
    assert summary["passed"]
    assert summary["target"] == "2 x sim"
    assert summary["inexact_values"] == 0
    assert summary["ranks_agree"]


LOSSY = (*SMALL, "--drop-rate", "0.05")


def test_sums_are_exact_though_packets_are_lost(tmp_path: Path) -> None:
    found = demo(tmp_path, *LOSSY)
    assert found["passed"]
    assert found["inexact_values"] == 0
    assert found["ranks_agree"]
    assert found["worst_gloo_error"] <= 1
    assert found["loss_last"] < found["loss_first"]
    assert found["tx_bytes"] < found["dense_bytes"] / 2
    assert found["retransmissions"] > 0
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_lost_packets_change_no_bit(tmp_path: Path) -> None:
    clean, lossy = demo(tmp_path, *SMALL), demo(tmp_path, *LOSSY)
    assert clean["retransmissions"] < lossy["retransmissions"]
    assert lossy["sums_sha256"] == clean["sums_sha256"]


@pytest.mark.slow
def test_the_native_switch_gives_the_bits_that_sim_gives(tmp_path: Path) -> None:
    try:
        library()
    except LibraryMissing as missing:
        pytest.skip(str(missing))
    assert demo(tmp_path, *SMALL, "--target", "native")["sums_sha256"] == demo(tmp_path, *SMALL)["sums_sha256"]


@pytest.mark.bmv2
@pytest.mark.root
@pytest.mark.slow
def test_bmv2_gives_the_bits_that_sim_gives(tmp_path: Path) -> None:
    if shutil.which("simple_switch_grpc") is None:
        pytest.skip("needs simple_switch_grpc, of the P4 project's BMv2")
    if os.geteuid() != 0:
        pytest.skip("needs root, to make network interfaces")
    bmv2 = demo(tmp_path, *SMALL, "--target", "bmv2")
    assert bmv2["passed"]
    assert bmv2["sums_sha256"] == demo(tmp_path, *SMALL)["sums_sha256"]


@pytest.mark.parametrize(
    ("plot", "said"),
    [("file/demo.png", "nothing can be written there"), ("demo.png", "accepted are sim, native and bmv2")],
)
def test_wrong_options_are_told_before_the_training(tmp_path: Path, plot: str, said: str) -> None:
    (tmp_path / "file").touch()
    process = start("", "demo", "--target", "tofino", "--plot", str(tmp_path / plot))
    assert said in process.communicate(timeout=60)[0]
    assert process.returncode == 1
