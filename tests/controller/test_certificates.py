# SPDX-License-Identifier: Apache-2.0
"""When certificates end: the series of those in use, and what the doctor says of it."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
import typer
from prometheus_client import CollectorRegistry, generate_latest
from typer.testing import CliRunner

from p4reduce.control.certificates import TlsFiles
from p4reduce_controller.base.limits import Rates
from p4reduce_controller.base.listening import ServiceConfig
from p4reduce_controller.doctor import cli
from p4reduce_controller.doctor.certificates import SOON, until
from p4reduce_controller.observability.certificates import Ends
from p4reduce_controller.settings.settings import Settings
from p4reduce_controller.standby.standby_web import standby_web
from p4reduce_controller.tenants.gate import Peers
from p4reduce_controller.tenants.pace import Pace
from tests.support.certificates import self_signed
from tests.support.controller.running import Loop, Running

DAY = 86400.0
HERE = "IP:127.0.0.1"


def ends(*files: TlsFiles | None) -> dict[str, float]:
    """In days from now, by the file's name."""
    registry = CollectorRegistry()
    registry.register(Ends(*files))
    return told(generate_latest(registry).decode())


def told(text: str) -> dict[str, float]:
    found = {}
    for line in text.splitlines():
        if line.startswith("p4reduce_certificate_expiry_timestamp_seconds{"):
            file, _, value = line.partition('file="')[2].partition('"} ')
            found[Path(file).name] = round((float(value) - time.time()) / DAY, 1)
    return found


def test_a_chain_ends_with_its_first_and_authorities_with_their_last(tmp_path: Path) -> None:
    soon, key = self_signed(tmp_path, "soon", days=3)
    late, _ = self_signed(tmp_path, "late", days=400)
    both = tmp_path / "both.pem"
    both.write_bytes(soon.read_bytes() + late.read_bytes())
    assert ends(None, TlsFiles(both, key)) == {"both.pem": 3.0}
    assert ends(TlsFiles(authorities=both), TlsFiles(soon, key)) == {"both.pem": 400.0, "soon.pem": 3.0}


def test_what_is_in_use_counts(tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path, "cert", days=3)
    new, new_key = self_signed(tmp_path, "new", days=30)
    files = TlsFiles(cert, key)
    shutil.copy(new, cert)  # without its key: the old one stays in use
    assert ends(files) == {"cert.pem": 3.0}
    shutil.copy(new_key, key)
    assert ends(files) == {"cert.pem": 30.0}


def test_who_stands_by_tells_it_too(tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path, "cert", HERE)
    store, _ = self_signed(tmp_path, "store")
    config = ServiceConfig(tls=TlsFiles(cert, key))
    door = Peers(Rates(), Pace())
    settings = Settings(metrics="127.0.0.1:0")
    web = standby_web(settings, config, lambda: "", door, TlsFiles(authorities=store))
    assert web is not None
    assert told(generate_latest(web.registry).decode()) == {"cert.pem": 2.0, "store.pem": 2.0}


def test_two_weeks_before_the_doctor_warns() -> None:
    now = time.time()
    assert until("a", now + (SOON + 1) * DAY).verdict == "ok"
    soon = until("a", now + 2.5 * DAY)
    assert (soon.verdict, soon.found[:22]) == ("warning", "expires within 3 days,")
    assert until("a", now - DAY).verdict == "problem"


@pytest.mark.parametrize("asks", [False, True])
def test_the_doctor_sees_what_the_controller_shows(loop: Loop, tmp_path: Path, asks: bool) -> None:
    cert, key = self_signed(tmp_path, "served", HERE, days=3)
    own, own_key = self_signed(tmp_path, "own", days=40)
    files = TlsFiles(cert, key, own if asks else "")
    running = Running(loop, ServiceConfig("127.0.0.1:0", tls=files))
    app = typer.Typer()
    app.command()(cli.doctor)
    before = dict(os.environ)
    options = ["--tls-cert", str(own), "--tls-key", str(own_key)] if asks else []
    result = CliRunner().invoke(
        app, ["--no-join", "--json", "--controller", running.address, "--tls-ca", str(cert), *options]
    )
    running.close()
    assert os.environ == before, "the certificate is this command's alone"
    verdicts = {Path(one["subject"]).name: one["verdict"] for one in json.loads(result.stdout)}
    assert verdicts["controller"] == "ok"
    assert verdicts["certificate of the controller"] == "warning"
    assert verdicts["served.pem"] == "warning"
    assert verdicts.get("own.pem") == ("ok" if asks else None)
