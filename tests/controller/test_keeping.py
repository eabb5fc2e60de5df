# SPDX-License-Identifier: Apache-2.0
"""What is kept of jobs while others come and go: a store takes a while to write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from p4reduce_controller.aggregator import Heard
from p4reduce_controller.job import Job

from .conftest import Loop, Running
from .ranks import ready


@pytest.fixture
def running(loop: Loop, tmp_path: Path) -> Iterator[Running]:
    running = Running(loop, state=tmp_path / "state")
    yield running
    running.close()


def test_a_job_that_is_just_kept_is_not_forgotten_with_another(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its being written and its ranks' hearing of it, another job's end has all written again."""
    written: list[list[str]] = []
    assert running.state is not None

    async def keep(jobs: Callable[[], Iterable[Job]], _: Mapping[int, Heard], __: float) -> None:
        written.append([job.name for job in jobs()])
        if len(written) == 1:
            await running.service._save_what_is_over()

    monkeypatch.setattr(running.state, "keep", keep)
    ready([running.rank(rank, 2, job="new") for rank in range(2)])
    assert written[:2] == [["new"], ["new"]]
