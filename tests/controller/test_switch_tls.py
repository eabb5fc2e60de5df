# SPDX-License-Identifier: Apache-2.0
"""Controllers and switches that speak TLS, and what is said where one does not know the other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from p4reduce_controller.doctor import switches
from p4reduce_controller.p4runtime.link import Link
from p4reduce_controller.p4runtime.program import load_schema
from p4reduce_controller.service.run import running
from p4reduce_controller.settings.settings import load
from p4reduce_controller.switches.aggregator import SwitchError
from tests.support.certificates import self_signed
from tests.support.controller.running import Running
from tests.support.controller.tls_switch import switch

TIMEOUT_S = 30.0
CHECK = (
    "check that the switch uses TLS, the name in its certificate, --switch-ca, and whether it asks for --switch-cert"
)

Options = dict[str, Any]


class Certificates:
    """Of a switch and of a controller, which are to know each other, and of a stranger."""

    def __init__(self, folder: Path) -> None:
        self.switch, self.switch_key = self_signed(folder, "switch", "IP:127.0.0.1")
        self.controller, self.controller_key = self_signed(folder, "controller")
        self.stranger, self.stranger_key = self_signed(folder, "stranger", "IP:127.0.0.1")

    def of_switch(self, *, asks: bool = True) -> list[str]:
        options = ["--tls-cert", str(self.switch), "--tls-key", str(self.switch_key)]
        return [*options, "--tls-ca", str(self.controller)] if asks else options

    def of_controller(self, **changes: Path | str) -> Options:
        good = {"switch_ca": self.switch, "switch_cert": self.controller, "switch_key": self.controller_key}
        return {key: str(value) for key, value in (good | changes).items()}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


def settings(address: str, options: Options) -> Options:
    return {"switch": [address], "listen": "127.0.0.1:0", **options}


def state(address: str, **options: str) -> str:
    """Of the switch, as a controller with these settings sees it."""

    async def work() -> str:
        async with running(load(None, settings(address, options)), TIMEOUT_S) as controller:
            return (await controller.status()).switches[0].state

    return asyncio.run(work())


def refusal(address: str, **options: str) -> str:
    """What a connection with these settings ends with."""

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
def test_those_who_know_each_other(certificates: Certificates, target: str) -> None:
    with switch(*certificates.of_switch(), target=target) as address:
        assert state(address, **certificates.of_controller()) == "Ready"


def test_a_switch_that_lets_in_everybody(certificates: Certificates) -> None:
    with switch(*certificates.of_switch(asks=False)) as address:
        assert state(address, switch_ca=str(certificates.switch)) == "Ready"


def test_a_switch_that_asks_who_is_there(certificates: Certificates) -> None:
    with switch(*certificates.of_switch()) as address:
        for options in (
            certificates.of_controller(switch_cert=certificates.stranger, switch_key=certificates.stranger_key),
            certificates.of_controller(switch_cert="", switch_key=""),
        ):
            assert CHECK in refusal(address, **options)
        said = refusal(address, **certificates.of_controller(switch_ca=certificates.stranger))
        assert (
            "not signed by an authority that is trusted here; give the authority that signed it, with --switch-ca"
            in said
        )
        assert "if the switch uses TLS, give --switch-ca" in refusal(address)
        [found] = switches.p4runtime(address, "switch1", 1, None, None)  # the doctor, on a host without certificates
        assert (found.verdict, "give --switch-ca" in found.advice) == ("skipped", True)
        assert state(address, **certificates.of_controller()) == "Ready"


def test_a_switch_without_tls(certificates: Certificates) -> None:
    with switch() as address:
        assert "it does not use TLS; leave out --switch-ca" in refusal(address, **certificates.of_controller())


def test_a_controller_is_no_switch(running: Running) -> None:
    assert ("the server there does not speak P4Runtime; check that it is a switch, and not a controller") in refusal(
        running.address
    )


def test_a_switch_of_which_nothing_is_known_is_not_named_as_one_with_tls(certificates: Certificates) -> None:
    with switch() as address:
        pass
    for options in ({}, certificates.of_controller()):
        said = refusal(address, **options)
        assert "connection refused; start it" in said
        assert "TLS" not in said
