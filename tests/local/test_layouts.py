# SPDX-License-Identifier: Apache-2.0
"""Ranks whose libraries lay out what they share in different ways are not taken for neighbours."""

from __future__ import annotations

import re

import pytest

from p4reduce.local import host
from tests.c_builds import ROOT

CSRC = ROOT / "hostlib" / "csrc"


def test_layouts_are_those_of_the_c_code() -> None:
    found = [
        re.search(rf"\b{name} = (\d+)", (CSRC / file).read_text())
        for name, file in (("LAYOUT", "shm/local_meeting.c"), ("HOST_LAYOUT", "shm/host_memory.h"))
    ]
    assert tuple(int(each[1]) for each in found if each is not None) == host._LAYOUTS


@pytest.mark.parametrize("changed", [(1, 0), (0, 1)])
def test_each_makes_another_digest(changed: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    before = host.digest()
    monkeypatch.setattr(host, "_LAYOUTS", tuple(map(sum, zip(host._LAYOUTS, changed, strict=True))))
    assert host.digest() != before
