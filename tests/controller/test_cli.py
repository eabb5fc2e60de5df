# SPDX-License-Identifier: Apache-2.0
"""The commands that ask a controller, and what `controller` says when it cannot begin."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.base.listening import ServiceConfig
from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.base.toml import tomllib
from p4reduce_controller.commands import cli
from p4reduce_controller.commands.access import plain
from p4reduce_controller.p4runtime import switch
from p4reduce_controller.settings.example import example
from p4reduce_controller.settings.settings import SCHEMA, load
from tests.support.certificates import self_signed
from tests.support.controller.running import Running, Starter
from tests.support.waiting import wait_until

app = typer.Typer()
app.command("controller")(cli.controller)
app.command("status")(cli.status)
app.command("loss")(cli.loss)


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def said(*arguments: str) -> str:
    """Return the one line of text with which a command fails."""
    code, out, error = run(*arguments)
    assert (code, out, error.count("\n")) == (1, "", 1)
    assert error.startswith("p4reduce: ")
    return error


def controller(*arguments: str) -> str:
    return said("controller", "--listen", "127.0.0.1:0", *arguments)


def test_status_shows_jobs_and_ranks(running: Running) -> None:
    running.job(2)
    other = running.rank(0, 2, job="other")
    wait_until(lambda: other.assigned, "the second job")
    code, out, _ = run("status", "--controller", running.address)
    assert code == 0
    for text in ("127.0.0.1:31314", "8 of 16 slots in use", "127.0.0.1:40001 on port 1", "not joined", "hello 7"):
        assert text in out


def test_status_shows_every_switch(start: Starter) -> None:
    running = start(Running, switches=2)
    running.job(1)
    code, out, _ = run("status", "--controller", running.address)
    assert code == 0
    for text in ("127.0.0.1:31314", "127.0.0.1:31315", "127.0.0.1:40000 on port 1", "127.0.0.1:41000 on port 1"):
        assert text in out
    assert out.count("2 of 16 slots in use") == 2
    assert out.count("0-1") == 2


def test_status_as_json_has_numbers(running: Running) -> None:
    running.job(1)
    code, out, _ = run("status", "--controller", running.address, "--json")
    assert code == 0
    status = json.loads(out)
    [switch] = status["switches"]
    assert switch["slots_used"] == 4
    assert switch["outcomes"]["hello"] == 7
    assert switch["outcomes"]["stale"] == 0
    assert (status["jobs_started"], status["jobs_aborted"]) == (1, 0)
    assert status["jobs"][0]["members"][0]["places"][0]["udp_port"] == 40000


def test_every_64_bit_number_is_a_number_in_json() -> None:
    """Protobuf's JSON has strings for them."""
    switch = pb.Switch(name="7", outcomes={"hello": 7}, rpc_errors={"UNAVAILABLE": 7}, losses=[pb.PortLoss(lost=7)])
    member = pb.Member(report=pb.Report(operations=7, awaited=[7], busy_s=0.5))
    job = pb.Job(name="7", members=[member], traffic=[pb.Traffic(packets=7)])
    values = plain(pb.StatusReply(switches=[switch], jobs=[job], tenants=[pb.Tenant(refusals=7)], joins=7))
    [switch_values], [job_values] = values["switches"], values["jobs"]
    report = job_values["members"][0]["report"]
    assert (switch_values["name"], job_values["name"]) == ("7", "7")
    assert (switch_values["outcomes"], switch_values["rpc_errors"]) == ({"hello": 7}, {"UNAVAILABLE": 7})
    assert switch_values["losses"][0]["lost"] == job_values["traffic"][0]["packets"] == values["joins"] == 7
    assert (report["operations"], report["awaited"], report["busy_s"]) == (7, [7], 0.5)
    assert values["tenants"][0]["refusals"] == 7


def test_loss_sets_what_it_says(running: Running) -> None:
    code, _, _ = run("loss", "--controller", running.address, "--port", "2", "--rate", "0.05", "--direction", "out")
    assert code == 0
    assert running.switch.loss_rates == {(2, "out"): 0.05}
    assert run("loss", "--controller", running.address, "--port", "3", "--rate", "1")[0] == 0
    assert running.switch.loss_rates[3, "in"] == running.switch.loss_rates[3, "out"] == 1.0
    code, _, error = run("loss", "--controller", running.address, "--port", "2", "--rate", "0", "--direction", "up")
    assert (code, "accepted are in, out and both" in error) == (1, True)


def test_a_token_is_shown_from_its_file(start: Starter, tmp_path: Path) -> None:
    running = start(Running, ServiceConfig(listen="127.0.0.1:0", token="secret"))
    code, _, error = run("status", "--controller", running.address)
    assert code == 1
    assert "a token is needed; pass the token that the controller was started with (P4REDUCE_TOKEN" in error
    file = tmp_path / "token"
    file.write_text("secret\n")
    assert run("status", "--controller", running.address, "--token-file", str(file))[0] == 0


def test_no_controller_is_one_line() -> None:
    assert "connection refused; start one with" in said("status", "--controller", "127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--listen", "0.0.0.0:7700"], "--insecure"),
        (["--listen", "here"], "must be HOST:PORT"),
        (["--address", "x"], "must be an IP address"),
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
    assert text in controller(*arguments)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"version": 7}', "\udcff"])
def test_a_state_file_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "state"
    file.write_text(text, errors="surrogateescape")
    assert controller("--state", str(file)).startswith(f"p4reduce: --state {file}")
    assert file.read_text(errors="surrogateescape") == text


# --- mistakes that everybody makes once, and the example file --------------------------------------------------------


def test_a_key_of_another_certificate(tmp_path: Path) -> None:
    one, _ = self_signed(tmp_path, "one")
    _, other = self_signed(tmp_path, "other")
    text = controller("--tls-cert", str(one), "--tls-key", str(other))
    assert f"--tls-cert and --tls-key: {other} is not the key of the certificate in {one}" in text
    assert "port" not in text
    authority = ["--switch-ca", str(one), "--switch-cert", str(one), "--switch-key", str(other)]
    assert "--switch-cert and --switch-key: " in controller(*authority)


def test_a_stop_while_a_switch_is_awaited_says_which() -> None:
    words = [sys.executable, "-m", "p4reduce", "controller", "--listen", "127.0.0.1:0", "--switch", "127.0.0.1:1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert "waiting for a switch" in process.stderr.readline()  # so that it waits
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, out) == (130, "")
    assert re.fullmatch(
        r"p4reduce: stopped while it waited for the switch at 127.0.0.1:1 \(.*connection refused.*\)\n", error
    )


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        text = said("controller", "--listen", address)
        assert f"cannot listen on {address}: another program uses the port" in text
        text = controller("--metrics", address)
        assert f"cannot serve on --metrics {address}: another program uses the port" in text


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        ("127.0.0.1", "must be HOST:PORT, as in 127.0.0.1:9559; the port is missing"),
        ("http://127.0.0.1:9559", "leave out http://"),
    ],
)
def test_a_switch_address_that_is_none(address: str, advice: str, tmp_path: Path) -> None:
    assert advice in controller("--switch", address)
    ca, _ = self_signed(tmp_path, "ca")
    assert advice in controller("--switch", address, "--switch-ca", str(ca))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--controller", "127.0.0.1"], "the port is missing"),
        (["--controller", "http://127.0.0.1:7700"], "leave out http://"),
        (["--token-file", "/nowhere/token"], "--token-file: cannot read /nowhere/token: No such file or directory"),
        (["--tls-ca", "/nowhere/ca"], "cannot read /nowhere/ca: No such file or directory"),
    ],
)
def test_who_asks_a_controller(arguments: list[str], text: str) -> None:
    assert text in said("status", *arguments)


def test_the_environment_is_asked_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_TLS_CA", "/nowhere/ca")
    assert "cannot read /nowhere/ca" in said("status")
    monkeypatch.setenv("P4REDUCE_TLS_CA", "")
    monkeypatch.setenv("P4REDUCE_CONTROLLER", "127.0.0.1")
    assert "controller 127.0.0.1: must be HOST:PORT" in said("status")


def test_no_switch_is_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switch, "_LOG_AWAY_AFTER", 0.2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        arguments = ["controller", "--listen", "127.0.0.1:0", "--switch", address, "--switch-timeout", "3"]
        text = CliRunner().invoke(app, arguments).stderr
    assert f"no switch after 3 s: switch at {address}: connecting failed: connection refused; start it" in text
    assert re.search(rf"^WARNING waiting for a switch, for [0-3] s more: switch at {address}: .*refused", text)


# The configuration file.


def lines_of_example() -> list[str]:
    """Return the settings of one switch in the example file, without their comment marks."""
    head, _, _ = example().partition("# [[switches]]")
    return [line[2:] for line in head.splitlines() if re.match(r"# \w+ = ", line)]


def test_the_example_has_every_setting_with_a_value_that_is_accepted() -> None:
    head, _, _ = example().partition("# [[switches]]")
    found: dict[str, Any] = {}
    for line in lines_of_example():
        found |= tomllib.loads(line)
    assert list(found) == [key for key, one in SCHEMA.items() if one.spec.help]
    for key, value in found.items():
        checked = SCHEMA[key].checked(value)
        assert checked == SCHEMA[key].default or not SCHEMA[key].default
    for setting in SCHEMA.values():
        assert setting.help in " ".join(head.replace("\n## ", " ").split("\n"))


def test_the_example_as_it_is_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "controller.toml"
    file.write_text(CliRunner().invoke(app, ["controller", "--example-config"]).stdout)
    assert file.read_text() == example()
    assert load(file, {}) == load(None, {})


def test_the_switches_of_the_example_are_accepted(tmp_path: Path) -> None:
    _, mark, tree = example().partition("# [[switches]]")
    file = tmp_path / "controller.toml"
    file.write_text((mark + tree).replace("# ", "").replace("#\n", "\n"))
    settings = load(file, {})
    assert [one["name"] for one in settings.switches] == ["spine", "leaf1", "leaf2"]
    assert len(settings.switch_configs()) == 3


@pytest.mark.parametrize("setting", [one for one in SCHEMA.values() if one.spec.help], ids=lambda one: one.key)
def test_a_key_may_be_written_as_the_option(tmp_path: Path, setting: Any) -> None:
    [line] = [line for line in lines_of_example() if line.startswith(f"{setting.key} = ")]
    texts = [line.replace(setting.key, name, 1) for name in (setting.key, setting.option.removeprefix("--"))]
    files = [tmp_path / f"{number}.toml" for number in range(2)]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    assert load(files[0], {}) == load(files[1], {})


def test_a_key_in_both_forms_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "controller.toml"
    file.write_text("drop_rate = 0.5\ndrop-rate = 0.5\n")
    with pytest.raises(SettingsError, match="drop-rate: drop_rate is given twice"):
        load(file, {})
