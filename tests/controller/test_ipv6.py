# SPDX-License-Identifier: Apache-2.0
"""Switches with IPv6 addresses: the program has to know them, and its packets have longer headers."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.fabric.changes import specs_of
from p4reduce_controller.p4runtime.builds import BUILDS
from p4reduce_controller.p4runtime.program import P4INFO
from p4reduce_controller.service import run
from p4reduce_controller.service.run import check_program, running
from p4reduce_controller.settings.settings import Settings, load
from p4reduce_controller.switches.aggregator import Layout, SwitchUnavailable

COMPILED = Path(__file__).parents[2] / "p4src" / "compiled"
JUMBO, USUAL = BUILDS
NOWHERE = "127.0.0.1:1"


def settings(**options: Any) -> Settings:
    return load(None, {"switch": [NOWHERE], "listen": "127.0.0.1:0", **options})


async def started(options: Settings) -> None:
    async with running(options, 0.1):
        pass


@pytest.fixture
def tofino(tmp_path: Path) -> str:
    """Return a directory with a program for Tofino."""
    shutil.copy(COMPILED / "tofino1-32.p4info.txtpb", tmp_path / P4INFO)
    (tmp_path / "p4reduce.bin").write_bytes(b"a program")
    return str(tmp_path)


@pytest.mark.parametrize(
    ("addresses", "named"), [(["fd00::fe"], "fd00::fe"), (["10.0.0.254", "[fd00::1]:5", "fd00::2"], "fd00::1")]
)
async def test_a_program_for_ipv4_refuses_ipv6_addresses(addresses: list[str], named: str, tofino: str) -> None:
    said = (
        f"--address {named} of the switch {NOWHERE}: its program knows only IPv4 addresses; give one, or another "
        f"--pipeline than {tofino}"
    )
    with pytest.raises(SettingsError, match=re.escape(said)):
        await started(settings(address=addresses, pipeline=tofino))
    with pytest.raises(SwitchUnavailable):
        await started(settings(address=["10.0.0.254"], pipeline=tofino))


def program(lanes: int, block_size: int) -> Any:
    return SimpleNamespace(layout=Layout(lanes, block_size, 512), knows_ipv6=True)


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.folder)
@pytest.mark.parametrize(("address", "more"), [("10.0.0.254", 0), ("fd00::fe", 20)])
def test_the_mtu_has_room_for_the_headers(build: Any, address: str, more: int) -> None:
    needed = build.mtu + more
    this = program(build.lanes, build.block_size)
    one = settings(address=[address], mtu=needed)
    check_program(this, specs_of(one)[0], one)
    if needed > USUAL.mtu:
        one = settings(address=[address], mtu=needed - 1)
        said = f"packets need an MTU of {needed}, and --mtu is {needed - 1}"
        with pytest.raises(SettingsError, match=said):
            check_program(this, specs_of(one)[0], one)
        check_program(this, specs_of(one)[0], settings(address=[address], mtu=needed - 1, pipeline="somewhere"))


@pytest.mark.parametrize(
    ("address", "mtu", "build"),
    [
        ("10.0.0.254", JUMBO.mtu, JUMBO),
        ("fd00::fe", JUMBO.mtu + 20, JUMBO),
        ("fd00::fe", JUMBO.mtu + 19, USUAL),
        ("fd00::fe", USUAL.mtu + 20, USUAL),
    ],
)
async def test_links_get_the_largest_packets_that_they_carry(
    address: str, mtu: int, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IPv6 headers are taken into account."""
    checked = []
    monkeypatch.setattr(
        run, "check_program", lambda program, spec, _: checked.append((program.layout, spec.address.ip))
    )
    monkeypatch.setattr(run, "P4RuntimeSwitch", _no_switch)
    with pytest.raises(_Reached):
        await started(settings(address=[address], mtu=mtu))
    assert checked == [(Layout(build.lanes, build.block_size, checked[0][0].slots), address)]


class _Reached(Exception):
    pass


def _no_switch(*_: object) -> None:
    raise _Reached
