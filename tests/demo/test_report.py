# SPDX-License-Identifier: Apache-2.0
"""The demo's report says what went wrong."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from p4reduce_bench.demo.report import Report

STATS = {"bytes_sent": 100, "bytes_received": 200, "packets_sent": 10, "rounds": 9, "retransmissions": 1}


def report(**changed: Any) -> Report:
    """Return a report of two ranks and two steps. changed: fields of rank 1's last step, or its digest."""
    made = Report(target="sim", workers=2, steps=2, drop_rate=0.0)
    for rank in range(2):
        for step in range(3):
            event = {"step": step, "loss": 5.0 - step, "seconds": 0.1, "element_density": 0.1, "block_density": 0.2,
                     "stats": STATS, "inexact": 0, "worst_gloo_error": 0.5}  # fmt: skip
            if rank == 0:
                event["held_out_loss"] = 8.0 - step
            if rank == 1 and step == 2:
                event.update({name: value for name, value in changed.items() if name != "digest"})
            made.add(rank, event)
        made.add(rank, {"digest": changed.get("digest", "ab") if rank else "ab", "parameters": 1000})
    return made


def test_a_good_run_passes() -> None:
    made = report()
    assert made.passed
    assert made.summary["tx_bytes"] == 200
    assert made.summary["dense_bytes"] == 4 * 1000 * 2 * 2
    assert made.losses == [(0, 8.0), (1, 7.0), (2, 6.0)]


@pytest.mark.parametrize("wrong", [{"inexact": 1}, {"worst_gloo_error": 1.5}, {"digest": "cd"}])
def test_each_wrong_sum_fails_the_run(wrong: dict[str, Any]) -> None:
    made = report(**wrong)
    assert not made.passed
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(made.table())
    assert "NO" in console.export_text()


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "demo.png"
    report().plot(path)
    assert path.read_bytes().startswith(b"\x89PNG")
