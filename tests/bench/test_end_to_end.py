# SPDX-License-Identifier: Apache-2.0
"""`p4reduce bench allreduce` as a user runs it."""

import itertools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from p4reduce_bench.allreduce.mpi import missing
from tests.support.interruption import start

LINKS = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2")
SMALL = ("--workers", "2", "--numel", "4096", "--density", "1,0.1,0", "--repeat", "2")
FIELDS = {"system", "target", "workers", "numel", "dtype", "density", "overlap", "sparsity", "link_gbps", "median_s",
          "min_s", "max_s", "limit_s", "tx_bytes", "rx_bytes", "packets", "retransmissions", "wrong"}  # fmt: skip


def bench(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run the benchmark to its end, and return its rows."""
    file = folder / "bench.json"
    process = start("", "bench", "allreduce", *arguments, "--json", str(file))
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    made = json.loads(file.read_text())
    assert made["version"] == 1
    rows: list[dict[str, Any]] = made["rows"]
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("target", ["native", "sim"])
def test_sums_are_right_beside_gloo(tmp_path: Path, target: str) -> None:
    plot = tmp_path / "made" / "plot.png"
    rows = bench(tmp_path, *SMALL, "--target", target, "--systems", "p4reduce,gloo,gloo-sparse", "--plot", str(plot),
                 "--overlap", "random", "--sparsity", "block")  # fmt: skip
    assert [row["system"] for row in rows] == ["p4reduce", "gloo", "gloo-sparse"] * 3
    for row in rows:
        assert row.keys() >= FIELDS
        assert row["error"] is None
        assert row["wrong"] == 0
        assert 0 < row["min_s"] <= row["median_s"] <= row["max_s"]
    sent = {row["density"]: row["tx_bytes"] for row in rows if row["system"] == "p4reduce"}
    assert sent[1] > sent[0.1] > sent[0]
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_modes_send_what_their_systems_send(tmp_path: Path) -> None:
    """Over 4 slots of 4 lanes, of 64 blocks, 16 are the first of their streams."""
    rows = bench(tmp_path, *SMALL, "--systems", "p4reduce,omnireduce,switchml", "--overlap", "all", "--sparsity",
                 "block", "--slots", "4", "--wire", "int16")  # fmt: skip
    assert [row["wire"] for row in rows] == ["int16", "int32", "int32"] * 3
    assert all((row["error"], row["wrong"], row["target"]) == (None, 0, "native") for row in rows)
    block, packet = 64 * 4, 100
    least = {("omnireduce", 0): 16, ("omnireduce", 1): 64, **{("switchml", density): 64 for density in (1, 0.1, 0)}}
    for row in rows:
        blocks = least.get((row["system"], row["density"]))
        if blocks is not None and row["retransmissions"] == 0:
            assert row["tx_bytes"] == blocks * block + (4 + blocks // 4) * packet, row
            assert row["rx_bytes"] == row["tx_bytes"], row


def test_each_layout_is_a_system_of_its_own(tmp_path: Path) -> None:
    rows = bench(tmp_path, *SMALL, "--systems", "p4reduce-blocks,p4reduce-elements", "--overlap", "none",
                 "--sparsity", "element")  # fmt: skip
    assert all((row["error"], row["wrong"], row["target"]) == (None, 0, "native") for row in rows)
    sent = {(row["system"], row["density"]): row["tx_bytes"] for row in rows}
    assert sent["p4reduce-elements", 0.1] < sent["p4reduce-blocks", 0.1]


@pytest.mark.slow
def test_several_aggregators(tmp_path: Path) -> None:
    rows = bench(tmp_path, *SMALL, "--systems", "p4reduce", "--aggregators", "3", "--overlap", "random",
                 "--sparsity", "block")  # fmt: skip
    assert [(row["target"], row["error"], row["wrong"]) for row in rows] == [("3 x native", None, 0)] * 3


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "int32"])
def test_other_dtypes_and_elements(tmp_path: Path, dtype: str) -> None:
    rows = bench(tmp_path, *SMALL, "--dtype", dtype, "--systems", "p4reduce,gloo", "--overlap", "none",
                 "--sparsity", "element")  # fmt: skip
    assert [(row["error"], row["wrong"]) for row in rows] == [(None, 0)] * 6


@pytest.mark.slow
@pytest.mark.timeout(900)  # DeepSpeed compiles its operator, once
@pytest.mark.parametrize(
    ("system", "local"),
    [*itertools.product(("mpi", "openmpi", "mpich"), ("off", "auto")), ("deepspeed", "auto"), ("p4reduce-c", "auto")],
)
def test_others_of_one_host(tmp_path: Path, system: str, local: str) -> None:
    if needed := missing(system):
        pytest.skip(f"needs {system}: {needed}")
    rows = bench(tmp_path, *SMALL, "--systems", system, "--overlap", "all", "--sparsity", "block", "--local", local)
    assert [(row["error"], row["wrong"]) for row in rows] == [(None, 0)] * 3


@pytest.mark.slow
def test_calls_in_a_row_are_all_right(tmp_path: Path) -> None:
    rows = bench(tmp_path, "--workers", "2", "--numel", "16,1000", "--calls", "50", "--density", "1", "--overlap",
                 "all", "--sparsity", "block", "--repeat", "2", "--local", "auto", "--input", "dense,shared",
                 "--systems", "p4reduce,p4reduce-c,gloo")  # fmt: skip
    assert [(row["numel"], row["system"]) for row in rows] == list(
        itertools.product((16, 1000), ("p4reduce", "p4reduce-shared", "p4reduce-c", "gloo"))
    )
    for row in rows:
        assert (row["error"], row["wrong"], row["calls"]) == (None, 0, 50)
        assert row["processor_s"] > 0


@LINKS
@pytest.mark.root
@pytest.mark.serial
@pytest.mark.slow
def test_links_are_as_fast_as_asked_and_gone_afterwards(tmp_path: Path) -> None:
    before = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    rows = bench(tmp_path, "--workers", "2", "--numel", "262144", "--density", "1", "--overlap", "all", "--sparsity",
                 "block", "--link", "50mbit", "--repeat", "2", "--systems", "p4reduce,gloo")  # fmt: skip
    for row in rows:
        assert (row["error"], row["wrong"]) == (None, 0)
        assert row["link_gbps"] == 0.05
        # A burst may pass faster than the rate, but not much more than that.
        assert row["min_s"] > row["tx_bytes"] * 8 / 50e6 * 0.9
    assert rows[0]["min_s"] > rows[0]["limit_s"] * 0.9
    assert rows[0]["tx_bytes"] * 8 / 50e6 == pytest.approx(rows[0]["limit_s"], rel=0.3)
    assert rows[1]["tx_bytes"] > 262144 * 4
    assert subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout == before


@LINKS
@pytest.mark.root
@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.parametrize("local", ["auto", "off"])
def test_ranks_of_a_host_send_one_stream_over_its_link(tmp_path: Path, local: str) -> None:
    rows = bench(tmp_path, "--workers", "4", "--ranks-per-host", "2", "--numel", "262144", "--density", "1",
                 "--overlap", "all", "--sparsity", "block", "--link", "50mbit", "--repeat", "2",
                 "--systems", "p4reduce,gloo", "--local", local)  # fmt: skip
    ours, gloo = rows
    assert all((row["error"], row["wrong"], row["ranks_per_host"]) == (None, 0, 2) for row in rows)
    streams = {"auto": 1, "off": 2}[local]
    assert ours["tx_bytes"] * 8 / 50e6 == pytest.approx(streams * ours["limit_s"], rel=0.3)
    assert ours["min_s"] > ours["tx_bytes"] * 8 / 50e6 * 0.9
    assert gloo["tx_bytes"] > 262144 * 4
