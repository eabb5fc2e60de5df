# SPDX-License-Identifier: Apache-2.0
"""The public Tofino backend places every profile in its chip's stages, without a warning about our sources.

docs/tofino.md has the resources of the chip that each profile uses.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

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
    assert found.stateful_alus == 32 + 6  # the sums, and what decides about them
    assert {row[0]: row[1] for row in tofino.table({name: found})[1:]} == documented(name)
    assert (tmp_path / "p4info.txtpb").read_text() == tofino.p4info(name).read_text(), "make p4-tofino"
