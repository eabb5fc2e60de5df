# SPDX-License-Identifier: Apache-2.0
"""BMv2 is given the options that its build knows: stand-ins take and refuse them as the real one does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from p4reduce_targets import bmv2
from p4reduce_targets.bmv2 import BINARY, Bmv2, TargetFailed

FAKE = Path(__file__).with_name("fake_bmv2.py")
NANOMSG, THRIFT = "--notifications-addr", "--thrift-port"
ANY = "127.0.0.1:0"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that installs a shell script as the simple_switch_grpc that is found."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def put(script: str) -> None:
        (tmp_path / BINARY).write_text(script)
        (tmp_path / BINARY).chmod(0o755)

    return put


def fake(given: Path, *options: str) -> str:
    known = ",".join(option[2:] for option in options)
    return f"#!/bin/sh\nexec {sys.executable} {FAKE} {given} '{known}' \"$@\"\n"


@pytest.mark.parametrize("known", [(), (NANOMSG,), (THRIFT,), (NANOMSG, THRIFT)], ids=lambda known: " ".join(known))
def test_a_build_is_given_the_options_that_it_knows(
    install: Callable[[str], None], tmp_path: Path, known: tuple[str, ...]
) -> None:
    given = tmp_path / "given"
    install(fake(given, *known))
    with Bmv2(grpc_address=ANY, device_id=7):
        options = json.loads(given.read_text())
    assert options[:5] == ["--no-p4", "--device-id", "7", "-L", "off"]
    assert [option for option in options if option in (NANOMSG, THRIFT)] == list(known)


def test_instances_share_neither_socket_nor_port(install: Callable[[str], None], tmp_path: Path) -> None:
    given = tmp_path / "given"
    install(fake(given, NANOMSG, THRIFT))
    started = []
    for _ in range(2):
        with Bmv2(grpc_address=ANY):
            started.append(json.loads(given.read_text()))
    for option in (NANOMSG, THRIFT):
        first, second = (options[options.index(option) + 1] for options in started)
        assert first != second


def test_a_stand_in_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    """The real BMv2 refuses unknown options, too. Otherwise the tests above would show nothing."""
    script = tmp_path / "fake"
    script.write_text(fake(tmp_path / "given", THRIFT))
    said = subprocess.run(
        ["/bin/sh", script, "--no-p4", NANOMSG, "ipc://x", "--"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert said.returncode == 1
    assert "Error while parsing" in said.stdout


@pytest.mark.parametrize(
    ("script", "named"),
    [("#!/bin/sh\nexec sleep 60\n", "timed out"), ("no program", "cannot be asked for its options: .*Exec format")],
    ids=["hangs", "no program"],
)
def test_one_that_cannot_be_asked_is_named(
    install: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, script: str, named: str
) -> None:
    monkeypatch.setattr(bmv2, "START_TIMEOUT_S", 0.5)
    install(script)
    with pytest.raises(TargetFailed, match=f"{BINARY} .*{named}"):
        Bmv2(grpc_address=ANY)


@pytest.mark.bmv2
@pytest.mark.skipif(shutil.which(BINARY) is None, reason=f"{BINARY} is not on PATH")
def test_the_real_one_starts_whatever_it_was_built_with() -> None:
    with Bmv2(grpc_address=ANY) as one, Bmv2(grpc_address=ANY) as other:
        assert one.address != other.address
        one.check()
        other.check()
