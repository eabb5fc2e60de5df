# SPDX-License-Identifier: Apache-2.0
"""Certificates that are demanded, shown, and replaced while they are in use."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
import typer
from finsy.proto import p4r, p4r_grpc
from prometheus_client import CollectorRegistry, generate_latest
from typer.testing import CliRunner

from p4reduce.commands.cli import app
from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import rpc
from p4reduce.control.certificates import CertificateError, TlsFiles
from p4reduce.control.channel import Tls, open_channel
from p4reduce.control.client import Session
from p4reduce.control.grpc_channels import open_grpc_channel
from p4reduce.errors import JoinError
from p4reduce_controller.base.limits import Rates
from p4reduce_controller.base.listening import ServiceConfig
from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.doctor import cli, switches
from p4reduce_controller.doctor.certificates import WARNING_DAYS, check_expiry
from p4reduce_controller.etcd import client
from p4reduce_controller.etcd.client import Etcd, EtcdError
from p4reduce_controller.observability.certificates import CertificateExpiry
from p4reduce_controller.p4runtime.link import Link
from p4reduce_controller.p4runtime.program import load_schema
from p4reduce_controller.service.run import running
from p4reduce_controller.service.run import running as whole
from p4reduce_controller.settings.settings import Settings, load
from p4reduce_controller.standby.standby_web import standby_web
from p4reduce_controller.switches.aggregator import SwitchError
from p4reduce_controller.tenants.gate import Peers
from p4reduce_controller.tenants.pace import Pace
from tests.support.certificates import self_signed
from tests.support.controller.running import Running, Starter
from tests.support.controller.tls_switch import switch
from tests.support.controller.web import Site
from tests.support.etcd import Members

HERE = "IP:127.0.0.1"


class Pair:
    """A certificate and its key at fixed places, which become those of somebody else."""

    def __init__(self, folder: Path, *names: str) -> None:
        folder.mkdir(exist_ok=True)
        self.made = {name: self_signed(folder, name, HERE) for name in names}
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"
        self.become(names[0])

    def become(self, name: str) -> None:
        for source, place in zip(self.made[name], (self.cert, self.key), strict=True):
            shutil.copy(source, place.with_suffix(".new"))
            os.replace(place.with_suffix(".new"), place)

    def of(self, name: str) -> Path:
        return self.made[name][0]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path, "old", "new", "stranger")


@pytest.fixture
def service(start: Starter, pair: Pair) -> Running:
    return start(Running, ServiceConfig(listen="127.0.0.1:0", tls=TlsFiles(pair.cert, pair.key)))


def status(address: str, tls: Tls | None) -> pb.StatusReply:
    with open_channel(address, tls) as channel:
        reply: pb.StatusReply = rpc.JobsStub(channel).Status(pb.StatusRequest(), timeout=10)
        return reply


def refused(address: str, tls: Tls | None) -> bool:
    with pytest.raises(grpc.RpcError) as error:
        status(address, tls)
    assert isinstance(error.value, grpc.Call)
    return error.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_new_certificate_is_for_new_connections_and_sessions_live_on(service: Running, pair: Pair) -> None:
    old, new = Tls(pair.of("old")), Tls(pair.of("new"))
    [rank] = service.job(1, tls=old)
    assert refused(service.address, new)
    pair.become("new")
    assert refused(service.address, old)
    [job] = status(service.address, new).jobs
    assert job.name == "job"
    rank.session.leave()  # over the connection that it began with, as it would not believe another
    assert rank.session.aborted is None


def test_a_rank_comes_back_with_the_certificates_of_then(start: Starter, pair: Pair, tmp_path: Path) -> None:
    config = ServiceConfig(listen="127.0.0.1:0", tls=TlsFiles(pair.cert, pair.key, pair.cert))
    service = start(Running, config, rejoin_time=60.0, state=tmp_path / "state")
    [rank] = service.job(1, tls=Tls(pair.cert, cert=pair.cert, key=pair.key))
    service.crash()
    pair.become("new")
    service.start_again(60.0)
    rank.session.leave()
    assert rank.session.aborted is None


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda pair: pair.cert.write_text("-----BEGIN CERTIFICATE-----\nrubbish"), "cert.pem"),
        (lambda pair: pair.cert.unlink(), "cannot read .*cert.pem: No such file"),
        (lambda pair: shutil.copy(pair.of("new"), pair.cert), "is not the key of the certificate"),
        (lambda pair: pair.key.write_text(""), "key.pem"),
    ],
)
def test_a_file_that_is_wrong_is_logged_once_and_what_was_there_stays(
    service: Running, pair: Pair, spoil: Callable[[Pair], object], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    old = Tls(pair.of("old"))
    with caplog.at_level(logging.ERROR):
        spoil(pair)
        for _ in range(3):
            status(service.address, old)
        errors = [record.getMessage() for record in caplog.records]
    assert len(errors) == 1
    with pytest.raises(CertificateError, match=said):
        raise CertificateError(errors[0])
    assert "the version read before stays in use" in errors[0]
    assert "PRIVATE" not in errors[0]
    pair.become("new")
    status(service.address, Tls(pair.of("new")))


def test_a_key_with_a_password_is_refused_and_none_is_asked_for(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path, "locked", HERE)
    shut = tmp_path / "shut.pem"
    command = ["openssl", "ec", "-aes128", "-passout", "pass:secret", "-in", str(key), "-out", str(shut)]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(CertificateError, match="has a password"):
        TlsFiles(certificate, shut)


def test_callers_need_a_certificate_and_it_may_be_taken_from_them(start: Starter, pair: Pair, tmp_path: Path) -> None:
    mine = pair.made["stranger"]
    trusted = tmp_path / "trusted.pem"
    shutil.copy(mine[0], trusted)
    service = start(Running, ServiceConfig(listen="127.0.0.1:0", tls=TlsFiles(pair.cert, pair.key, trusted)))
    shows = Tls(pair.cert, cert=mine[0], key=mine[1])
    assert status(service.address, shows).switches
    assert refused(service.address, Tls(pair.cert))
    assert refused(service.address, Tls(pair.cert, cert=pair.cert, key=pair.key))
    with pytest.raises(JoinError, match="if the controller asks for a client certificate, give one"):
        Session(service.address, tls=Tls(pair.cert), connect_timeout=1).join("job", 0, 1)
    shutil.copy(pair.of("new"), trusted)
    assert refused(service.address, shows)


def test_commands_show_a_certificate_by_option_or_environment(
    start: Starter, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = start(Running, ServiceConfig(listen="127.0.0.1:0", tls=TlsFiles(pair.cert, pair.key, pair.cert)))
    for name in ("CA", "CERT", "KEY"):
        monkeypatch.setenv(f"P4REDUCE_TLS_{name}", "")
    common = ["--controller", service.address, "--tls-ca", str(pair.cert)]
    own = ["--tls-cert", str(pair.cert), "--tls-key", str(pair.key)]
    for command in (["status", "--json"], ["jobs", "list", "--json"], ["switches", "list"]):
        answer = CliRunner().invoke(app, [*command, *common, *own])
        assert answer.exit_code == 0, answer.output
        monkeypatch.setenv("P4REDUCE_TLS_CERT", "")
        monkeypatch.setenv("P4REDUCE_TLS_KEY", "")
    half = CliRunner().invoke(app, ["status", *common, "--tls-cert", str(pair.cert)])
    assert half.exit_code == 1
    assert "give both or neither" in half.output
    monkeypatch.setenv("P4REDUCE_TLS_CERT", str(pair.cert))
    monkeypatch.setenv("P4REDUCE_TLS_KEY", str(pair.key))
    assert CliRunner().invoke(app, ["status", *common]).exit_code == 0


def get(address: str, path: str, ca: Path, own: tuple[Path, Path] | None = None) -> int:
    context = ssl.create_default_context(cafile=str(ca))
    if own is not None:
        context.load_cert_chain(*own)
    connection = http.client.HTTPSConnection(address, timeout=10, context=context)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def test_the_page_and_metrics_demand_certificates_and_follow_the_files(running: Running, pair: Pair) -> None:
    mine = pair.made["stranger"]
    trusted = pair.cert.with_name("trusted.pem")
    shutil.copy(mine[0], trusted)
    tls = TlsFiles(pair.cert, pair.key, trusted)
    with Site(running, page="127.0.0.1:0", metrics="127.0.0.1:0", tls=tls, metrics_tls=True) as site:
        site.look()
        for address, path in ((site.web.page, "/api/status"), (site.web.metrics, "/metrics")):
            context = ssl.create_default_context(cafile=str(pair.cert))
            context.load_cert_chain(*mine)
            kept = http.client.HTTPSConnection(address, timeout=10, context=context)
            kept.request("GET", path)
            answer = kept.getresponse()
            assert (answer.status, answer.read() != b"") == (200, True)
            with pytest.raises((ssl.SSLError, OSError)):
                get(address, path, pair.cert)
            pair.become("new")
            with pytest.raises(ssl.SSLCertVerificationError):
                get(address, path, pair.of("old"), mine)
            assert get(address, path, pair.of("new"), mine) == 200
            kept.request("GET", path)  # over the same connection
            assert kept.getresponse().status == 200
            kept.close()
            pair.become("old")
        shutil.copy(pair.of("new"), trusted)
        with pytest.raises((ssl.SSLError, OSError)):
            get(site.web.page, "/healthz", pair.cert, mine)
        assert get(site.web.page, "/healthz", pair.cert, pair.made["new"]) == 200


def test_metrics_are_in_the_clear_unless_they_are_to_be_served_over_tls(running: Running, pair: Pair) -> None:
    with Site(running, metrics="127.0.0.1:0", tls=TlsFiles(pair.cert, pair.key, pair.cert)) as site:
        assert site.get("/healthz", at=site.web.metrics)[0] == 200


def capabilities(address: str, ca: Path, own: tuple[Path, Path]) -> None:
    """Ask a switch for its capabilities. Raises grpc.RpcError."""
    how = grpc.ssl_channel_credentials(ca.read_bytes(), own[1].read_bytes(), own[0].read_bytes())
    with open_grpc_channel(address, how) as channel:
        p4r_grpc.P4RuntimeStub(channel).Capabilities(p4r.CapabilitiesRequest(), timeout=10)


def test_a_switch_follows_its_files_while_its_controller_stays(pair: Pair, tmp_path: Path) -> None:
    """When a switch comes back, the controller presents the certificate that is in its files then."""
    mine = Pair(tmp_path / "mine", "first", "second")
    both = tmp_path / "controllers.pem"
    both.write_bytes(b"".join(mine.of(name).read_bytes() for name in ("first", "second")))
    trusts = tmp_path / "switches.pem"
    trusts.write_bytes(b"".join(pair.of(name).read_bytes() for name in ("old", "new")))
    options = ["--tls-cert", str(pair.cert), "--tls-key", str(pair.key), "--tls-ca", str(both)]
    with switch(*options) as address:
        given = {"switch_ca": str(trusts), "switch_cert": str(mine.cert), "switch_key": str(mine.key)}

        async def work() -> None:
            settings = load(None, {"switch": [address], "listen": "127.0.0.1:0", **given})
            async with whole(settings, 30.0) as controller:
                capabilities(address, pair.of("old"), mine.made["first"])
                pair.become("new")
                with pytest.raises(grpc.RpcError):
                    capabilities(address, pair.of("old"), mine.made["first"])
                capabilities(address, pair.of("new"), mine.made["first"])
                assert (await controller.status()).switches[0].state == "Ready"
                # From now on only the controller's second certificate is accepted, and its connection is cut.
                both.write_bytes(mine.of("second").read_bytes())
                mine.become("second")
                [aggregator] = controller.inventory.switches.values()
                await aggregator._link.close()  # type: ignore[attr-defined]
                await asyncio.sleep(0.2)
                await asyncio.wait_for(aggregator.wait_connected(), 20.0)

        asyncio.run(work())


def test_etcd_is_shown_the_certificate_of_then(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ATTEMPT_TIMEOUT", 10.0)  # or else a busy machine hides what is wrong with TLS
    mine = Pair(tmp_path / "mine", "first", "second")
    options = ["--cert-file", str(pair.cert), "--key-file", str(pair.key)]
    options += ["--client-cert-auth", "--trusted-ca-file", str(mine.of("first"))]
    with closing(Members(tmp_path, options=options, scheme="https")) as members:

        async def work() -> None:
            etcd = Etcd(members.addresses, TlsFiles(mine.cert, mine.key, pair.of("old")))
            await etcd.range("/key", timeout=30.0)
            mine.become("second")  # which etcd does not trust, so that it differs from the first
            with pytest.raises(EtcdError, match="--store-cert"):
                await etcd.range("/key", timeout=3.0)
            mine.become("first")
            await etcd.range("/key", timeout=30.0)
            await etcd.close()

        asyncio.run(work())


def test_what_does_not_go_together(pair: Pair) -> None:
    for options, said in (
        ({"tls_ca": str(pair.cert)}, "--tls-ca needs --tls-cert"),
        ({"metrics_tls": True}, "--metrics-tls needs --tls-cert"),
        ({"tls_cert": str(pair.cert)}, "--tls-cert and --tls-key: give both or neither"),
    ):
        with pytest.raises(SettingsError, match=said):
            load(None, options).serving_tls()


# --- between controllers and switches --------------------------------------------------------------------------------


TIMEOUT_S = 30.0
CHECK = (
    "check that the switch uses TLS, the name in its certificate, --switch-ca, and whether it asks for --switch-cert"
)

Options = dict[str, Any]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the certificates and keys of a switch and of a controller that trust each other, and of a stranger."""
    folder, made = tmp_path_factory.mktemp("tls"), {}
    for name in ("switch", "controller", "stranger"):
        made[name], made[f"{name}'s key"] = map(str, self_signed(folder, name, HERE))
    return made


def of_switch(files: dict[str, str], *, asks: bool = True) -> list[str]:
    options = ["--tls-cert", files["switch"], "--tls-key", files["switch's key"]]
    return [*options, "--tls-ca", files["controller"]] if asks else options


def of_controller(files: dict[str, str], **changes: str) -> Options:
    good = {"switch_ca": "switch", "switch_cert": "controller", "switch_key": "controller's key", **changes}
    return {key: files.get(name, name) for key, name in good.items()}


def settings(address: str, options: Options) -> Options:
    return {"switch": [address], "listen": "127.0.0.1:0", **options}


def state(address: str, **options: str) -> str:
    """Return the switch's state, as a controller with these settings sees it."""

    async def work() -> str:
        async with running(load(None, settings(address, options)), TIMEOUT_S) as controller:
            return (await controller.status()).switches[0].state

    return asyncio.run(work())


def refusal(address: str, **options: str) -> str:
    """Return the error with which a connection with these settings fails."""

    async def work() -> None:
        tls = load(None, settings(address, options)).switch_tls()
        link = Link(address, 1, load_schema(), lambda *_: None, tls)
        try:
            await link.look()
        finally:
            await link.close()

    with pytest.raises(SwitchError) as caught:
        asyncio.run(work())
    return str(caught.value)


@pytest.mark.parametrize("target", ["sim", "native"])
def test_those_who_know_each_other(files: dict[str, str], target: str) -> None:
    with switch(*of_switch(files), target=target) as address:
        assert state(address, **of_controller(files)) == "Ready"


def test_a_switch_that_lets_in_everybody(files: dict[str, str]) -> None:
    with switch(*of_switch(files, asks=False)) as address:
        assert state(address, switch_ca=files["switch"]) == "Ready"


def test_a_switch_that_asks_who_is_there(files: dict[str, str]) -> None:
    with switch(*of_switch(files)) as address:
        for options in (
            of_controller(files, switch_cert="stranger", switch_key="stranger's key"),
            of_controller(files, switch_cert="", switch_key=""),
        ):
            assert CHECK in refusal(address, **options)
        said = refusal(address, **of_controller(files, switch_ca="stranger"))
        assert (
            "not signed by an authority that is trusted here; give the authority that signed it, with --switch-ca"
            in said
        )
        assert "if the switch uses TLS, give --switch-ca" in refusal(address)
        [found] = switches.p4runtime(address, "switch1", 1, None, None)  # the doctor, on a host without certificates
        assert (found.verdict, "give --switch-ca" in found.advice) == ("skipped", True)
        assert state(address, **of_controller(files)) == "Ready"


def test_a_switch_without_tls(files: dict[str, str]) -> None:
    with switch() as address:
        assert "it does not use TLS; leave out --switch-ca" in refusal(address, **of_controller(files))


def test_a_controller_is_no_switch(running: Running) -> None:
    assert ("the server there does not speak P4Runtime; check that it is a switch, and not a controller") in refusal(
        running.address
    )


def test_a_switch_of_which_nothing_is_known_is_not_named_as_one_with_tls(files: dict[str, str]) -> None:
    with switch() as address:
        pass
    for options in ({}, of_controller(files)):
        said = refusal(address, **options)
        assert "connection refused; start it" in said
        assert "TLS" not in said


# --- when certificates end -------------------------------------------------------------------------------------------


DAY = 86400.0


def ends(*files: TlsFiles | None) -> dict[str, float]:
    """Return the ends of the files' certificates in days from now, by the file's name."""
    registry = CollectorRegistry()
    registry.register(CertificateExpiry(*files))
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
    assert told(generate_latest(web.registry).decode()) == {"cert.pem": 2.0, "store.pem": 2.0}


def test_two_weeks_before_the_doctor_warns() -> None:
    now = time.time()
    assert check_expiry("a", now + (WARNING_DAYS + 1) * DAY).verdict == "ok"
    soon = check_expiry("a", now + 2.5 * DAY)
    assert (soon.verdict, soon.found[:22]) == ("warning", "expires within 3 days,")
    assert check_expiry("a", now - DAY).verdict == "problem"


@pytest.mark.parametrize("asks", [False, True])
def test_the_doctor_sees_what_the_controller_shows(start: Starter, tmp_path: Path, asks: bool) -> None:
    cert, key = self_signed(tmp_path, "served", HERE, days=3)
    own, own_key = self_signed(tmp_path, "own", days=40)
    files = TlsFiles(cert, key, own if asks else "")
    running = start(Running, ServiceConfig("127.0.0.1:0", tls=files))
    app = typer.Typer()
    app.command()(cli.doctor)
    before = dict(os.environ)
    options = ["--tls-cert", str(own), "--tls-key", str(own_key)] if asks else []
    result = CliRunner().invoke(
        app, ["--no-join", "--json", "--controller", running.address, "--tls-ca", str(cert), *options]
    )
    assert os.environ == before, "the certificate is this command's alone"
    verdicts = {Path(one["subject"]).name: one["verdict"] for one in json.loads(result.stdout)}
    assert verdicts["controller"] == "ok"
    assert verdicts["certificate of the controller"] == "warning"
    assert verdicts["served.pem"] == "warning"
    assert verdicts.get("own.pem") == ("ok" if asks else None)
