# SPDX-License-Identifier: Apache-2.0
"""The systemd units: what systemd says of them, and that p4reduce takes what they call it with."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from p4reduce_controller.commands.cli import notify_service_manager

from .commands import DEPLOY, parsed, settings_of, words_of

SYSTEMD = DEPLOY / "systemd"
UNITS = sorted(SYSTEMD.glob("*.service"))
MOST_EXPOSED = 20  # tenths; what systemd calls OK is up to 49


def values(unit: Path, key: str) -> list[str]:
    return re.findall(rf"^{key}=((?:.*\\\n)*.*)$", unit.read_text(), re.MULTILINE)


def called(unit: Path) -> list[str]:
    """Return the arguments with which a unit calls p4reduce."""
    (line,) = values(unit, "ExecStart")
    ports = "--port 1=udp:10.0.0.5:31314 --port 2=eth:eth1"
    program, *words = words_of(line.replace("$PORTS", ports).replace("${P4RUNTIME}", "10.0.0.5:9559"))
    assert program == "/opt/p4reduce/bin/p4reduce"
    return words


@pytest.fixture
def units(tmp_path: Path) -> list[str]:
    """Return the paths of copies of the units, which call a program that exists in place of p4reduce."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze (Debian: systemd)")
    for unit in UNITS:
        text = unit.read_text().replace("/opt/p4reduce/bin/p4reduce", shutil.which("true") or "/bin/true")
        (tmp_path / unit.name).write_text(text)
    drop_in = tmp_path / "p4reduce-switch.service.d"
    drop_in.mkdir()
    shutil.copy(SYSTEMD / "ethernet.conf", drop_in)
    return [str(tmp_path / unit.name) for unit in UNITS]


def test_systemd_accepts_the_units(units: list[str]) -> None:
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, timeout=60)
    ours = [line for line in done.stderr.splitlines() if "p4reduce" in line]
    assert (done.returncode, ours) == (0, []), done.stderr


def test_the_units_are_hardened(units: list[str]) -> None:
    for unit in units:
        command = ["systemd-analyze", "security", "--offline=true", f"--threshold={MOST_EXPOSED}", "--no-pager", unit]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if "unrecognized option" in done.stderr:
            pytest.skip("needs systemd-analyze of systemd 250 or later")
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_what_is_called_is_accepted(unit: Path) -> None:
    words = called(unit)
    parsed(words)
    credentials = {name.partition(":")[0] for name in values(unit, "LoadCredential")}
    used = set(re.findall(r"\$\{CREDENTIALS_DIRECTORY\}/(\S+)", unit.read_text()))
    assert used == credentials
    assert not [word for word in words if word.startswith("/etc/") and not word.endswith("controller.toml")]


@pytest.mark.parametrize("name", ["controller", "standby"])
def test_the_settings_of_the_example_go_with_the_unit(tmp_path: Path, name: str) -> None:
    text = (SYSTEMD / "controller.toml").read_text()
    if name == "standby":
        text = re.sub(r"^# (store|users|audit_log) = ", r"\1 = ", text, flags=re.MULTILINE)
    config = tmp_path / "controller.toml"
    config.write_text(text)
    settings = settings_of(config, called(SYSTEMD / f"p4reduce-{name}.service"))
    assert settings.listen == "0.0.0.0:7700"
    assert (bool(settings.state), bool(settings.store), settings.standby) == {
        "controller": (True, False, False),
        "standby": (False, True, True),
    }[name]
    assert (settings.users != "") == (name == "standby")


def test_the_service_manager_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify_service_manager("nobody listens")
    name = f"p4reduce-test-{os.getpid()}"  # of no other test run
    for address, place in ((str(tmp_path / "notify"), str(tmp_path / "notify")), (f"@{name}", f"\0{name}")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(place)
            manager.settimeout(5)
            monkeypatch.setenv("NOTIFY_SOCKET", address)
            notify_service_manager("serves listen=127.0.0.1:7700")
            assert manager.recv(4096) == b"READY=1\nSTATUS=serves listen=127.0.0.1:7700"
    notify_service_manager("nobody listens any more")
