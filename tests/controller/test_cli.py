# SPDX-License-Identifier: Apache-2.0
"""The commands that ask a controller, and what `controller` says when it cannot begin."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from p4reduce_controller.base.listening import ServiceConfig
from p4reduce_controller.commands import cli
from tests.support.controller.ranks import ready
from tests.support.controller.running import Loop, Running
from tests.support.waiting import wait_until

app = typer.Typer()
app.command("controller")(cli.controller)
app.command("status")(cli.status)
app.command("loss")(cli.loss)


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_status_shows_jobs_and_ranks(running: Running) -> None:
    ready([running.rank(rank, 2) for rank in range(2)])
    other = running.rank(0, 2, job="other")
    wait_until(lambda: other.assigned, "the second job")
    code, out, _ = run("status", "--controller", running.address)
    assert code == 0
    for text in ("127.0.0.1:31314", "8 of 16 slots in use", "127.0.0.1:40001 on port 1", "not joined", "hello 7"):
        assert text in out


def test_status_shows_every_switch(loop: Loop) -> None:
    running = Running(loop, switches=2)
    try:
        ready([running.rank(0, 1)])
        code, out, _ = run("status", "--controller", running.address)
        assert code == 0
        for text in ("127.0.0.1:31314", "127.0.0.1:31315", "127.0.0.1:40000 on port 1", "127.0.0.1:41000 on port 1"):
            assert text in out
        assert out.count("2 of 16 slots in use") == 2
        assert out.count("0-1") == 2
    finally:
        running.close()


def test_status_as_json_has_numbers(running: Running) -> None:
    ready([running.rank(0, 1)])
    code, out, _ = run("status", "--controller", running.address, "--json")
    assert code == 0
    status = json.loads(out)
    [switch] = status["switches"]
    assert switch["slots_used"] == 4
    assert switch["outcomes"]["hello"] == 7
    assert switch["outcomes"]["stale"] == 0
    assert (status["jobs_started"], status["jobs_aborted"]) == (1, 0)
    assert status["jobs"][0]["members"][0]["places"][0]["udp_port"] == 40000


def test_loss_sets_what_it_says(running: Running) -> None:
    code, _, _ = run("loss", "--controller", running.address, "--port", "2", "--rate", "0.05", "--direction", "out")
    assert code == 0
    assert running.switch.loss_rates == {(2, "out"): 0.05}
    assert run("loss", "--controller", running.address, "--port", "3", "--rate", "1")[0] == 0
    assert running.switch.loss_rates[3, "in"] == running.switch.loss_rates[3, "out"] == 1.0
    code, _, error = run("loss", "--controller", running.address, "--port", "2", "--rate", "0", "--direction", "up")
    assert (code, "accepted are in, out and both" in error) == (1, True)


def test_a_token_is_shown_from_its_file(loop: Loop, tmp_path: Path) -> None:
    running = Running(loop, ServiceConfig(listen="127.0.0.1:0", token="secret"))
    try:
        code, _, error = run("status", "--controller", running.address)
        assert code == 1
        assert "a token is needed; pass the token that the controller was started with (P4REDUCE_TOKEN" in error
        file = tmp_path / "token"
        file.write_text("secret\n")
        assert run("status", "--controller", running.address, "--token-file", str(file))[0] == 0
    finally:
        running.close()


def test_no_controller_is_one_line() -> None:
    code, _, error = run("status", "--controller", "127.0.0.1:1")
    assert code == 1
    assert "connection refused; start one with" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--listen", "0.0.0.0:7700"], "--insecure"),
        (["--listen", "here"], "must be HOST:PORT"),
        (["--address", "x"], "must be an IPv4 address"),
        (["--host", "x"], "must be MAC=PORT"),
        (["--route", "x"], "must be CIDR=PORT,MAC"),
        (["--ports", "x"], "numbers separated by commas"),
        (["--drop-rate", "2"], "accepted are 0 to 1"),
        (["--config", "/nowhere/x.toml"], "cannot read /nowhere/x.toml: No such file"),
        (["--token-file", "/nowhere/token"], "cannot read /nowhere/token"),
        (["--tls-cert", "/nowhere/cert", "--tls-key", "/nowhere/key"], "cannot read /nowhere/cert"),
        (["--state", "/nowhere/state"], "--state /nowhere/state: cannot open /nowhere/state.lock: No such file"),
        (["--pipeline", "/nowhere"], "there is no /nowhere/p4info.txtpb"),
        (["--switch", "127.0.0.1:1", "--switch-timeout", "0.3"], "no switch after 0.3 s: switch at 127.0.0.1:1"),
    ],
)
def test_a_controller_that_cannot_begin_says_why_in_one_line(arguments: list[str], text: str) -> None:
    code, out, error = run("controller", "--listen", "127.0.0.1:0", *arguments)
    assert (code, out) == (1, "")
    assert text in error
    assert error.startswith("p4reduce: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"version": 7}', "\udcff"])
def test_a_state_file_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "state"
    file.write_text(text, errors="surrogateescape")
    code, out, error = run("controller", "--listen", "127.0.0.1:0", "--state", str(file))
    assert (code, out) == (1, "")
    assert error.startswith(f"p4reduce: --state {file}")
    assert error.count("\n") == 1
    assert file.read_text(errors="surrogateescape") == text
