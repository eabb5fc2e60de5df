# SPDX-License-Identifier: Apache-2.0
"""The public Tofino backend places every profile in its chip's stages, without a warning about our sources.

docs/tofino.md has the resources of the chip that each profile uses.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from p4reduce_controller.p4runtime.program import Program, load_schema
from p4reduce_controller.switches.aggregator import Layout
from p4reduce_targets.bfrt import device_config
from tests.support.scripts import P4SRC
from tests.support.tofino.builds import PROFILES, tofino

pytestmark = [pytest.mark.p4c, pytest.mark.slow, pytest.mark.timeout(1800)]

DOCS = P4SRC.parent / "docs" / "tofino.md"


def documented(name: str) -> dict[str, str]:
    """Return a profile's column of the table in docs/tofino.md that has the profiles' names as its head."""
    lines = DOCS.read_text().splitlines()
    start = lines.index("| | " + " | ".join(f"`{one}`" for one in PROFILES) + " |") + 2
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start : lines.index("", start)]]
    return {row[0]: row[1 + PROFILES.index(name)] for row in rows}


@pytest.mark.parametrize("name", PROFILES)
def test_it_fits_as_documented(tmp_path: Path, name: str) -> None:
    try:
        found = tofino.compile_profile(name, tmp_path)
    except tofino.ToolMissing as missing:
        pytest.skip(str(missing))
    except subprocess.CalledProcessError as error:
        pytest.fail(error.stderr)
    assert found.stages <= tofino.PROFILES[name].stages
    # The sums, what decides about them, and the envoy.
    assert found.stateful_alus == 32 + 6 + (1 if tofino.PROFILES[name].can_be_leaf else 0)
    assert {row[0]: row[1] for row in tofino.table({name: found})[1:]} == documented(name)
    assert (tmp_path / "p4info.txtpb").read_text() == tofino.p4info(name).read_text(), "make p4-tofino"
    check_folder(tmp_path, name)


def check_folder(folder: Path, name: str) -> None:
    """Check that a controller and a switch read the folder, and which ports they find in it."""
    profile, config = tofino.PROFILES[name], device_config.read_folder(folder)
    assert device_config.cpu_port(config) == profile.cpu_port
    assert device_config.recirculation_port(config) == (profile.recirculation_port if profile.has_second_pass else None)
    assert load_schema(folder).p4blob == config.SerializeToString()
    assert Program(load_schema(folder)).layout == Layout(lanes=1, block_size=profile.block_size, slots=profile.slots)
