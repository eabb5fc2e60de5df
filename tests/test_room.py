# SPDX-License-Identifier: Apache-2.0
"""Who is alone is alone, and gets there."""

from __future__ import annotations

import fcntl
import threading
import time
from pathlib import Path

from .conftest import Room

DEADLINE_S = 20.0
SOON_S = 0.2


class Guest:
    """Enters in a thread; `inside` and `left` say how far it is. It leaves when told."""

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


def wait_for_the_door_to_be_taken(folder: Path) -> None:
    """By who waits inside of it for the others to leave."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            with (folder / "door").open("w") as door:
                fcntl.flock(door, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        time.sleep(0.01)
    raise AssertionError("nobody is at the door")


def test_alone_means_alone(tmp_path: Path) -> None:
    first, second = Guest(tmp_path, alone=False), Guest(tmp_path, alone=False)
    assert first.inside.wait(DEADLINE_S)
    assert second.inside.wait(DEADLINE_S)
    alone = Guest(tmp_path, alone=True)
    wait_for_the_door_to_be_taken(tmp_path)
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
