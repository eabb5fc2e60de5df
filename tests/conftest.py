# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests, and who of pytest-xdist's workers may run when one of them has to be alone."""

import contextlib
import fcntl
import os
import signal
import sysconfig
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Programs under test inherit ignored signals. A shell ignores SIGINT for what it runs in the background, nohup SIGHUP.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Where there is no GPU, Triton's interpreter runs the kernels. It must be told before Triton is first imported.
if not os.path.exists("/dev/nvidiactl"):
    os.environ["TRITON_INTERPRET"] = "1"

# Tests share the processors, and torch's threads would wait for one another's turn. Told before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What is tested is the way through the switch; tests of the other say so.
os.environ["P4REDUCE_LOCAL"] = "off"

# How long an example takes says more of the machine than of the code.
settings.register_profile("p4reduce", deadline=None)
settings.load_profile("p4reduce")

# cmake and ninja come with the set-up, into a folder that need not be on PATH.
os.environ["PATH"] += os.pathsep + sysconfig.get_path("scripts")


class Room:
    """Where tests of this checkout are one at a time or in company, whichever process runs them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._door = (folder / "door").open("w")
        self._room = (folder / "room").open("w")

    @contextlib.contextmanager
    def entered(self, alone: bool) -> Iterator[None]:
        """Waits for one who is alone to leave; with `alone`, for all. Nobody overtakes who waits at the door."""
        fcntl.flock(self._door, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)


ROOM = pytest.StashKey[Room]()


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # of pytest-xdist; not of the pytest that a test starts
        config.stash[ROOM] = Room(config.rootpath / "build" / "tests")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test marked serial measures time or memory: no other runs meanwhile. Waiting is not part of its time limit."""
    room = item.config.stash.get(ROOM, None)
    with room.entered(alone=item.get_closest_marker("serial") is not None) if room else contextlib.nullcontext():
        return (yield)
