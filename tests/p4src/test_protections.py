# SPDX-License-Identifier: Apache-2.0
"""The data-plane tests notice when a protection is taken out of the P4 program: each change must fail its test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.mutants import check_that_it_fails
from tests.support.protections import BUILDS, CHANGES, SMALL, changed

pytestmark = [pytest.mark.p4c, pytest.mark.slow]


@pytest.mark.parametrize("name", CHANGES)
def test_a_protection_taken_out_is_noticed(tmp_path: Path, name: str) -> None:
    if shutil.which("p4c-bm2-ss") is None:
        pytest.skip("p4c-bm2-ss is not on PATH")
    changed(name, tmp_path / "p4src").compile_program(tmp_path / "compiled", BUILDS.get(name, SMALL))
    options = ["-m", "not bmv2", "-k", "not tofino"]  # whose program is another
    check_that_it_fails(f"dataplane/{CHANGES[name][3]}", *options, P4REDUCE_COMPILED=str(tmp_path / "compiled"))
