# SPDX-License-Identifier: Apache-2.0
"""The compose file and the Dockerfile: their form, and that what they start fits together."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .commands import DEPLOY, parsed, settings_of

yaml = pytest.importorskip("yaml", reason="needs PyYAML")

COMPOSE = DEPLOY / "compose"
DOCKERFILE = DEPLOY / "Dockerfile"
OURS = ("switch", "controller1", "controller2", "training")


@pytest.fixture(scope="module")
def compose() -> Any:
    return yaml.safe_load((COMPOSE / "compose.yaml").read_text())


def test_it_is_as_the_specification_says() -> None:
    checker = pytest.importorskip("check_jsonschema", reason="needs check-jsonschema").main
    from click.testing import CliRunner

    done = CliRunner().invoke(checker, ["--builtin-schema", "vendor.compose-spec", str(COMPOSE / "compose.yaml")])
    assert done.exit_code == 0, done.output


def test_docker_compose_accepts_it(tmp_path: Path) -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode != 0:
        pytest.skip("needs docker compose")
    command = [docker, "compose", "--project-directory", str(tmp_path), "--file", str(COMPOSE / "compose.yaml")]
    done = subprocess.run([*command, "config", "--quiet"], capture_output=True, text=True, env={"P4REDUCE_USER": "0:0"})
    assert done.returncode == 0, done.stderr


def test_what_is_named_is_there(compose: Any) -> None:
    for one in compose["configs"].values():
        assert (COMPOSE / one["file"]).is_file(), one
    made = re.findall(r"(\w+)=(?:DNS|IP):", (COMPOSE / "compose.yaml").read_text())
    certificates = {"ca.pem", "token", *(f"{name}.{kind}" for name in made for kind in ("pem", "key"))}
    assert {one["file"] for one in compose["secrets"].values()} == {f"certificates/{name}" for name in certificates}
    for name, service in compose["services"].items():
        assert set(service.get("secrets", ())) <= set(compose["secrets"]), name
        assert {one["source"] for one in service.get("configs", ())} <= set(compose["configs"]), name
        assert set(service["networks"]) <= set(compose["networks"]), name
        text = json.dumps(service)
        for secret in re.findall(r"/run/secrets/([\w.]+)", text):
            assert secret in service["secrets"], name


def test_controllers_and_switch_are_called_as_they_accept_it(compose: Any) -> None:
    services = compose["services"]
    switch = parsed(services["switch"]["command"])
    for name in ("controller1", "controller2"):
        service = services[name]
        settings = settings_of(COMPOSE / "controller.toml", service["command"])
        (one,) = settings.switches
        assert one["switch"] == switch["grpc"]
        assert f"1=udp:{one['address'][0]}:31314" in switch["port"]
        assert one["switch"].rpartition(":")[0] == services["switch"]["networks"]["control"]["ipv4_address"]
        assert one["address"] == [services["switch"]["networks"]["data"]["ipv4_address"]]
        assert settings.standby
        assert settings.store == "etcd://etcd"
        secrets = {getattr(settings, key) for key in ("token_file", "tls_cert", "tls_key", "store_ca", "switch_ca")}
        assert secrets == {f"/run/secrets/{one}" for one in service["secrets"]}
        assert service["hostname"] == name  # by which the other finds it
        assert f"{name}:7700" in services["training"]["environment"]["P4REDUCE_CONTROLLER"].split(",")
    targets = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())["scrape_configs"][0]["static_configs"][0][
        "targets"
    ]
    assert targets == ["controller1:7701", "controller2:7701"]


def test_what_listens_beyond_its_networks_is_on_loopback(compose: Any) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert len(ports) == len({port.split(":")[1] for port in ports}) > 3
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_ours_may_do_nothing_that_they_need_not(compose: Any) -> None:
    for name in OURS:
        service = compose["services"][name]
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "P4REDUCE_USER" in service["user"]


def test_prometheus_and_grafana_find_ours(compose: Any) -> None:
    services = compose["services"]
    assert [one["target"] for one in services["prometheus"]["configs"]] == [
        "/etc/prometheus/prometheus.yml",
        "/etc/prometheus/alerts.yml",
    ]
    targets = {one["source"]: one["target"] for one in services["grafana"]["configs"]}
    (provider,) = yaml.safe_load((COMPOSE / "grafana-dashboards.yaml").read_text())["providers"]
    assert Path(targets["dashboard"]).parent == Path(provider["options"]["path"])
    (source,) = yaml.safe_load((COMPOSE / "grafana-datasources.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"


def test_promtool_accepts_the_scrape_and_the_rules(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool (Debian: prometheus)")
    shutil.copy(COMPOSE / "prometheus.yml", tmp_path)
    shutil.copy(DEPLOY.parent / "controller" / "monitoring" / "alerts.yml", tmp_path)
    done = subprocess.run([promtool, "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_hadolint_finds_nothing() -> None:
    hadolint = shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("needs hadolint")
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_the_image_runs_as_nobody_in_particular_and_has_what_it_copies() -> None:
    stages = re.split(r"^FROM ", DOCKERFILE.read_text(), flags=re.MULTILINE)[1:]
    (base,) = [stage for stage in stages if stage.startswith("$BASE AS base\n")]
    assert re.findall(r"^USER (.*)$", base, re.MULTILINE) == ["10001:10001"]
    for last in stages[-2:]:
        assert last.startswith("base")
        assert "USER" not in last
    # The build's context: what is left of the repository is what the package is made of.
    kept = re.findall(r"^!(\S+)$", (DEPLOY.parent / ".dockerignore").read_text(), re.MULTILINE)
    assert all((DEPLOY.parent / one).exists() for one in kept)
    packages = re.findall(r'^"p4reduce\S*" = "([^/"]+)/', (DEPLOY.parent / "pyproject.toml").read_text(), re.MULTILINE)
    assert packages
    assert {"pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", *packages} <= set(kept)
