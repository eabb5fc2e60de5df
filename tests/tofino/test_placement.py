# SPDX-License-Identifier: Apache-2.0
"""The public Tofino backend places every profile in its chip's stages, without a warning about our sources."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .builds import PROFILES, tofino

pytestmark = [pytest.mark.p4c, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("name", PROFILES)
def test_it_fits(tmp_path: Path, name: str) -> None:
    try:
        found = tofino.compile_profile(name, tmp_path)
    except tofino.ToolMissing as missing:
        pytest.skip(str(missing))
    except subprocess.CalledProcessError as error:
        pytest.fail(error.stderr)
    assert found.stages <= tofino.PROFILES[name].stages
    assert found.stateful_alus >= 32 + 6  # the sums, and what decides about them
