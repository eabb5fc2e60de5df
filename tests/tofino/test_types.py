# SPDX-License-Identifier: Apache-2.0
"""Every profile passes p4c's front end as it is, without a warning; and what cannot be built says so."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.tofino.builds import PROFILES, tofino

pytestmark = pytest.mark.p4c


@pytest.mark.slow
@pytest.mark.parametrize("name", PROFILES)
def test_types(name: str) -> None:
    try:
        assert tofino.check(tofino.PROFILES[name]) == ""
    except tofino.ToolMissing as missing:
        pytest.skip(str(missing))
    except subprocess.CalledProcessError as error:
        pytest.fail(error.stderr)


@pytest.mark.parametrize(
    ("parameters", "message"), [({"LANES": 2}, "LANES must be 1"), ({"BLOCK_SIZE": 128}, "32 or 64")]
)
def test_other_shapes_are_refused(parameters: dict[str, int], message: str) -> None:
    try:
        with pytest.raises(subprocess.CalledProcessError) as caught:
            tofino.check(tofino.PROFILES["tofino1-64"], **parameters)
    except tofino.ToolMissing as missing:
        pytest.skip(str(missing))
    assert message in caught.value.stderr
