# SPDX-License-Identifier: Apache-2.0
"""What `p4reduce controller` says of the mistakes that everybody makes once, and its complete example file."""

from __future__ import annotations

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

from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.commands import cli
from p4reduce_controller.settings.example import example
from p4reduce_controller.settings.settings import SCHEMA, load, tomllib  # type: ignore[attr-defined]
from tests.support.certificates import self_signed

app = typer.Typer()
app.command("controller")(cli.controller)
app.command("status")(cli.status)


def said(*arguments: str) -> str:
    """By a command that fails, in one line."""
    result = CliRunner().invoke(app, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    return result.stderr


def controller(*arguments: str) -> str:
    return said("controller", "--listen", "127.0.0.1:0", *arguments)


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
            assert process.stderr is not None
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
def test_a_switch_address_that_is_none(address: str, advice: str) -> None:
    assert advice in controller("--switch", address)


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


def test_no_switch_is_told_soon() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        arguments = ["controller", "--listen", "127.0.0.1:0", "--switch", address, "--switch-timeout", "8"]
        text = CliRunner().invoke(app, arguments).stderr
    assert f"no switch after 8 s: switch at {address}: connecting failed: connection refused; start it" in text
    assert re.search(rf"^WARNING waiting for a switch, for [1-6] s more: switch at {address}: .*refused", text)


# The configuration file.


def lines_of_example() -> list[str]:
    """Those of one switch, without their marks."""
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
