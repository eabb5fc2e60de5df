# SPDX-License-Identifier: Apache-2.0
"""The program for Tofino as a switch of the tests of the data plane: p4c's intermediate representation, executed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.dataplane.switch import Switch
from tests.dataplane.targets import CPU_PORT, TARGETS, Embedded
from tests.p4src.build import compiler, script

from .switch import load_switch

TARGETS["tofino"] = lambda: Embedded(load_switch)

SLOTS = 64


tofino = script("tofino")


class TofinoUnderTest(Switch):
    """Counts the packet that completes a round as completed alone, where BMv2 counts it as added (or started), too."""

    def counts(self) -> dict[str, int]:
        counts = super().counts()
        if "completed" in counts:
            counts["added"] = counts.get("added", 0) + counts["completed"]
        return counts


Build = Callable[[str], Path]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """For a profile: a folder with the P4Info of the same program for BMv2, and the representation of that for Tofino.

    The number of slots and the CPU port are those of the tests.
    """
    folder = tmp_path_factory.mktemp("tofino")

    def make(name: str) -> Path:
        to = folder / name
        if not to.exists():
            profile = tofino.PROFILES[name]
            try:
                ir = folder / f"{name}.json"
                tofino.check(profile, ir, SLOTS=SLOTS, CPU_PORT=CPU_PORT)
                reference(folder, profile.block_size)
            except tofino.ToolMissing as missing:
                pytest.skip(str(missing))
            except subprocess.CalledProcessError as error:
                pytest.fail(error.stderr)
            to.mkdir()
            shutil.copy(ir, to / "p4reduce.json")
            shutil.copy(folder / f"bmv2-{profile.block_size}" / "p4info.txtpb", to)
        return to

    return make


def reference(folder: Path, block_size: int) -> Path:
    """The program for BMv2 with the same packets."""
    if shutil.which("p4c-bm2-ss") is None:
        pytest.skip("p4c-bm2-ss is not on PATH")
    to = folder / f"bmv2-{block_size}"
    if not to.exists():
        compiler().compile_program(to, ["-DLANES=1", f"-DBLOCK_SIZE={block_size}", f"-DSLOTS={SLOTS}"])
    return to


@pytest.fixture(scope="session", params=list(tofino.PROFILES))
def profile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def running_switch(build: Build, profile: str) -> Iterator[Switch]:
    with TofinoUnderTest("tofino", build(profile)) as switch:
        yield switch


@pytest.fixture
def switch(running_switch: Switch) -> Iterator[Switch]:
    """A switch without entries, but for its own address."""
    running_switch.own_address()
    yield running_switch
    running_switch.reset()
