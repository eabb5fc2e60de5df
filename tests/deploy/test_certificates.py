# SPDX-License-Identifier: Apache-2.0
"""deploy/certificates.sh: an authority, and certificates with which a switch and a controller know each other."""

from __future__ import annotations

import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from .commands import DEPLOY

SCRIPT = DEPLOY / "certificates.sh"


def made(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    return subprocess.run(["sh", str(SCRIPT), str(folder), *names], capture_output=True, text=True, timeout=60)


def openssl(*arguments: str) -> str:
    return subprocess.run(["openssl", *arguments], check=True, capture_output=True, text=True, timeout=60).stdout


def test_certificates_are_the_authoritys_and_keys_their_owners(tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    done = made(folder, "controller=DNS:controller.example,IP:10.0.0.10", "switch=IP:10.0.0.5")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in folder.iterdir()} == {
        f"{name}.{kind}" for name in ("ca", "controller", "switch") for kind in ("pem", "key")
    }
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == (0o600 if path.suffix == ".key" else 0o644)
    authority = str(folder / "ca.pem")
    for purpose in ("sslserver", "sslclient"):
        openssl("verify", "-purpose", purpose, "-CAfile", authority, str(folder / "controller.pem"))
    openssl("verify", "-CAfile", authority, "-verify_hostname", "controller.example", str(folder / "controller.pem"))
    openssl("verify", "-CAfile", authority, "-verify_ip", "10.0.0.5", str(folder / "switch.pem"))
    # A certificate that is made anew is of the same authority.
    before = (folder / "ca.pem").read_bytes(), (folder / "switch.pem").read_bytes()
    assert made(folder, "switch=IP:10.0.0.6").returncode == 0
    assert ((folder / "ca.pem").read_bytes() == before[0], (folder / "switch.pem").read_bytes() == before[1]) == (
        True,
        False,
    )
    openssl("verify", "-CAfile", authority, "-verify_ip", "10.0.0.6", str(folder / "switch.pem"))


@pytest.mark.parametrize("name", ["switch", "switch=", "switch=10.0.0.5", "=IP:10.0.0.5", "a/b=IP:10.0.0.5", "ca=IP:1"])
def test_what_is_not_accepted_makes_nothing(tmp_path: Path, name: str) -> None:
    done = made(tmp_path / "certificates", name)
    assert done.returncode == 1
    assert f"certificates.sh: {name}: " in done.stderr
    assert not (tmp_path / "certificates").exists()
