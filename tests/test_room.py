# SPDX-License-Identifier: Apache-2.0
"""Tests that need to be alone run alone, and get their turn. Long tests begin first."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

from tests.support.room import Room, long_first
from tests.support.waiting import wait_until

DEADLINE_S = 20.0
SOON_S = 0.2


class Guest:
    """A thread that enters the room, and leaves it when told. `inside` and `left` say how far it is."""

    def __init__(self, folder: Path, alone: bool) -> None:
        self.inside, self.left, self._told = threading.Event(), threading.Event(), threading.Event()
        threading.Thread(target=self._visit, args=(folder, alone), daemon=True).start()

    def _visit(self, folder: Path, alone: bool) -> None:
        with Room(folder).entered(alone):
            self.inside.set()
            self._told.wait(DEADLINE_S)
        self.left.set()

    def leave(self) -> None:
        self._told.set()
        assert self.left.wait(DEADLINE_S)


def the_door_is_taken(folder: Path) -> bool:
    """Return whether a test has locked the door and waits for the others to leave."""
    try:
        with (folder / "door").open("w") as door:
            fcntl.flock(door, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def test_alone_means_alone(tmp_path: Path) -> None:
    first, second = Guest(tmp_path, alone=False), Guest(tmp_path, alone=False)
    assert first.inside.wait(DEADLINE_S)
    assert second.inside.wait(DEADLINE_S)
    alone = Guest(tmp_path, alone=True)
    wait_until(lambda: the_door_is_taken(tmp_path), "somebody at the door")
    assert not alone.inside.is_set()
    late = Guest(tmp_path, alone=False)
    first.leave()
    assert not alone.inside.wait(SOON_S)
    assert not late.inside.is_set(), "it overtook who wants to be alone"
    second.leave()
    assert alone.inside.wait(DEADLINE_S)
    assert not late.inside.wait(SOON_S)
    alone.leave()
    assert late.inside.wait(DEADLINE_S)
    late.leave()


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("count", [0, 1, 5, 23, 40])
def test_each_worker_begins_with_its_share_of_the_long_ones(count: int, workers: int) -> None:
    items = list(range(count))
    found = long_first(items, workers, lambda item: item % 5 == 4)
    assert sorted(found) == items
    for worker in range(workers):
        share = len(found) // (workers - worker)  # as in pytest-xdist's WorkStealingScheduling.check_schedule
        own, found = found[:share], found[share:]
        longs = [item % 5 == 4 for item in own]
        assert longs == sorted(longs, reverse=True)
