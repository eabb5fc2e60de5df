# SPDX-License-Identifier: Apache-2.0
"""Settings of all tests. A test that is marked serial runs alone among pytest-xdist's workers."""

import atexit
import contextlib
import gc
import os
import signal
import sysconfig
from collections.abc import Generator

import pytest
from hypothesis import settings

from tests.support.room import Room, long_first

# Programs under test inherit ignored signals. A shell ignores SIGINT for what it runs in the background, nohup SIGHUP.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Without a GPU, Triton's interpreter runs the kernels. The variable must be set before Triton is first imported.
if not os.path.exists("/dev/nvidiactl"):
    os.environ["TRITON_INTERPRET"] = "1"

# Tests share the processors, and torch's threads would wait for one another's turn. Told before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# By default tests reduce through the switch. Tests of reductions within one host turn this on again.
os.environ["P4REDUCE_LOCAL"] = "off"

# How long an example takes says more of the machine than of the code.
settings.register_profile("p4reduce", deadline=None)
settings.load_profile("p4reduce")

# cmake and ninja come with the set-up, into a folder that need not be on PATH.
os.environ["PATH"] += os.pathsep + sysconfig.get_path("scripts")


ROOM = pytest.StashKey[Room]()


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # of pytest-xdist; not of the pytest that a test starts
        config.stash[ROOM] = Room(config.rootpath / "build" / "tests")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from scanning, in every test, the million objects of modules and of other tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # or else libraries would report them as leaks
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1:  # a test that has a time limit of its own takes long
        items[:] = long_first(items, workers, lambda item: item.get_closest_marker("timeout") is not None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test marked `serial`, which measures time or memory, while no other test runs.

    The wait for the others is not part of the test's time limit.
    """
    room = item.config.stash.get(ROOM, None)
    with room.entered(alone=item.get_closest_marker("serial") is not None) if room else contextlib.nullcontext():
        return (yield)
