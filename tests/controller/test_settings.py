# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4reduce.transport.addresses import why_not_a_host
from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.fabric.changes import spec_of, specs_of, written
from p4reduce_controller.p4runtime.switch_config import Route
from p4reduce_controller.settings import texts
from p4reduce_controller.settings.settings import SCHEMA, Settings, load
from p4reduce_controller.switches.frames import Endpoint
from tests.support.certificates import self_signed

EXAMPLE = """\
switch = ["127.0.0.1:9559"]    # the switch's P4Runtime server, or those of several
listen = "0.0.0.0:7700"
address = ["10.0.0.254"]       # of each switch; a single switch can answer for several
mac = ["02:00:0a:00:00:fe"]
ports = [1, 2, 3]              # to flood
tls_cert = "cert.pem"
tls_key = "key.pem"
token_file = "token"

[hosts]                        # MAC address = port
"02:00:00:00:00:01" = 1

[[routes]]
destination = "10.0.1.0/24"
port = 2
next_hop_mac = "02:00:00:00:00:02"
"""


def test_defaults_are_one_udp_port_on_loopback() -> None:
    config = load(None, {}).switch_configs()[0]
    assert config.target == "127.0.0.1:9559"
    assert config.address == Endpoint("02:00:7f:00:00:01", "127.0.0.1", 31314)
    assert (config.ports, config.hosts, config.routes, config.more_addresses) == ([1], {}, [], [])


def test_the_example_is_accepted_and_options_win(tmp_path: Path) -> None:
    file = tmp_path / "controller.toml"
    file.write_text(EXAMPLE)
    settings = load(file, {"listen": "127.0.0.1:1", "ports": None})
    config = settings.switch_configs()[0]
    assert settings.listen == "127.0.0.1:1"
    assert settings.tls_cert == "cert.pem"
    assert config.address == Endpoint("02:00:0a:00:00:fe", "10.0.0.254", 31314)
    assert config.ports == [1, 2, 3]
    assert config.hosts == {"02:00:00:00:00:01": 1}
    assert config.routes == [Route(IPv4Network("10.0.1.0/24"), 2, "02:00:00:00:00:02")]


def test_one_line_options_say_what_the_file_says() -> None:
    assert texts.parse_address("127.0.0.1:40001") == ("127.0.0.1", 40001)
    assert texts.parse_host("02-00-00-00-00-0A=3") == ("02-00-00-00-00-0A", 3)
    assert texts.parse_route("10.0.1.0/24=2,02:00:00:00:00:02") == {
        "destination": "10.0.1.0/24",
        "port": 2,
        "next_hop_mac": "02:00:00:00:00:02",
    }
    assert texts.parse_ports("1, 2,3") == [1, 2, 3]
    config = load(None, {"hosts": dict([texts.parse_host("02-00-00-00-00-0A=3")])}).switch_configs()[0]
    assert config.hosts == {"02:00:00:00:00:0a": 3}


def test_more_addresses_are_the_switchs_too() -> None:
    config = load(None, {"address": ["10.0.0.254:9", "10.0.1.254"]}).switch_configs()[0]
    assert (config.address.ip, config.address.udp_port, config.more_addresses) == ("10.0.0.254", 9, ["10.0.1.254"])


@given(st.ip_addresses(), st.integers(1, 2**16 - 1))
def test_addresses_are_read_as_they_are_printed(ip: IPv4Address | IPv6Address, port: int) -> None:
    address = Endpoint("", str(ip), port)
    if why_not_a_host(str(ip)):
        with pytest.raises(SettingsError, match="--address"):
            texts.parse_address(str(address))
        return
    assert texts.parse_address(str(address)) == (str(ip), port)
    assert texts.parse_address(str(ip)) == (str(ip), 31314)
    assert texts.parse_address(str(Endpoint("", ip.exploded, port))) == (str(ip), port)


def test_ipv6_addresses_of_switches() -> None:
    config = load(None, {"address": ["[FD00:0::12:fe]:9", "fd00:1::fe", "10.0.1.254"]}).switch_configs()[0]
    assert config.address == Endpoint("06:00:00:d3:00:fe", "fd00::12:fe", 9)
    assert config.more_addresses == ["fd00:1::fe", "10.0.1.254"]
    config = replace(config, name="leaf")
    assert spec_of(json.dumps(written(config)), load(None, {})) == config
    assert load(None, {"address": ["::1"]}).switch_configs()[0].address == Endpoint("06:00:00:00:00:01", "::1", 31314)


@pytest.mark.parametrize("addresses", [("fd00::1", "10.0.0.2"), ("10.0.0.1", "[fd00::2]:5")])
def test_a_parent_has_the_family_of_its_child(addresses: tuple[str, str]) -> None:
    options = {"switch": ["a:1", "b:2"], "address": list(addresses), "switch_insecure": True}
    assert len(specs_of(load(None, options))) == 2  # as roots, both may be
    wrong = load(None, options | {"uplink": ["b:2:1=a:1"]})
    (one, port), (other, other_port) = map(texts.parse_address, addresses)
    said = (
        f"the switch b:2 has --address {Endpoint('', other, other_port)}, and its parent a:1 has "
        f"{Endpoint('', one, port)}: give both IPv4 addresses, or both IPv6"
    )
    with pytest.raises(SettingsError, match=re.escape(said)):
        specs_of(wrong)


def test_switches_do_not_get_one_mac_by_default() -> None:
    options = {"switch": ["a:1", "b:2"], "address": ["fd00:1::fe", "fd00:2::fe"], "switch_insecure": True}
    assert len({spec.address.mac for spec in specs_of(load(None, options))}) == 2


def test_several_switches_have_an_address_each() -> None:
    options = {"switch": ["a:1", "b:2"], "address": ["10.0.0.1", "10.0.0.2:5"], "ports": [1, 2]}
    one, two = load(None, options).switch_configs()
    assert (one.target, one.address) == ("a:1", Endpoint("02:00:0a:00:00:01", "10.0.0.1", 31314))
    assert (two.target, two.address) == ("b:2", Endpoint("02:00:0a:00:00:02", "10.0.0.2", 5))
    assert one.ports == two.ports == [1, 2]
    assert not one.more_addresses
    _, two = load(None, options | {"mac": ["02:00:00:00:00:01", "02:00:00:00:00:02"]}).switch_configs()
    assert two.address.mac == "02:00:00:00:00:02"


def test_one_switch_need_not_be_a_list(tmp_path: Path) -> None:
    file = tmp_path / "controller.toml"
    file.write_text('switch = "a:1"\nmac = "02:00:00:00:00:01"\nuplink = "a:1:2=b:1"\n')
    settings = load(file, {})
    [config] = settings.switch_configs()
    assert (config.target, config.address.mac, settings.uplink) == ("a:1", "02:00:00:00:00:01", ["a:1:2=b:1"])


def test_spellings_of_an_address_name_one_switch() -> None:
    one, other = "[0:0::1]:1", "[::0:1]:1"
    options = {"switch": [one, "b:2"], "address": ["10.0.0.1", "10.0.0.2"], "switch_insecure": True}
    spine, leaf = specs_of(load(None, options | {"uplink": [f"b:2:3={other}"]}))
    assert (spine.name, spine.target, leaf.uplinks) == ("[::1]:1", "[::1]:1", ((3, "[::1]:1"),))
    assert specs_of(load(None, options | {"spare": [other]}))[0].spare
    tables = [{"switch": one, "address": "10.0.0.1"}, {"switch": "b:2", "uplink": {"port": 3, "to": other}}]
    assert specs_of(load(None, {"switches": tables, "switch_insecure": True}))[1].uplinks == ((3, "[::1]:1"),)


TWO = {"switch": ["a:1", "b:2"], "address": ["10.0.0.1", "10.0.0.2"]}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (TWO | {"switch": ["a:1", "a:1"]}, "--switch a:1, a:1: give one or more different"),
        (TWO | {"switch": ["[::1]:1", "[0:0::1]:1"]}, "--switch [::1]:1, [0:0::1]:1: give one or more different"),
        (TWO | {"switch": []}, "--switch : give one or more different"),
        (TWO | {"address": ["10.0.0.1"]}, "--address 10.0.0.1 for 2 switches: give one for each"),
        (TWO | {"address": ["10.0.0.1"] * 2}, "no two alike"),
        (TWO | {"mac": ["02:00:00:00:00:01"]}, "--mac is given 1 times for 2 switches"),
        (TWO | {"hosts": {"02:00:00:00:00:01": 1}}, "--host and --route are for a single switch, and there are 2"),
        ({"address": ["10.0.0"]}, "--address '10.0.0': must be an IP address"),
        ({"address": ["10.0.0.1:0"]}, "must be an IP address"),
        (
            {"address": ["10.0.0.1:x"]},
            "must be an IP address, or one with a UDP port, as 10.0.0.254:31314 or [fd00::fe]",
        ),
        ({"address": ["[fd00::1]:0"]}, "--address '[fd00::1]:0': must be an IP address"),
        ({"address": ["[fd00::1]:65536"]}, "must be an IP address"),
        ({"address": ["[10.0.0.1]:31314"]}, "must be an IP address"),
        ({"address": ["fd00::1]:31314"]}, "must be an IP address"),
        ({"address": ["fd00::1/64"]}, "must be an IP address"),
        ({"address": ["0.0.0.0"]}, "--address '0.0.0.0': it is not a host's address"),
        ({"address": ["10.0.0.1", "239.1.2.3:31314"]}, "--address '239.1.2.3:31314': it is not a host's address"),
        ({"address": ["255.255.255.255"]}, "it is not a host's address; give the address that ranks send to"),
        ({"address": ["::"]}, "--address '::': it is not a host's address"),
        ({"address": ["10.0.0.1", "[ff02::1]:31314"]}, "--address '[ff02::1]:31314': it is not a host's address"),
        ({"address": ["fe80::1"]}, "--address 'fe80::1': it is valid on one link only"),
        ({"address": ["[fe80::1%eth0]:31314"]}, "it is valid on one link only"),
        ({"address": ["fd00::1%eth0"]}, "--address 'fd00::1%eth0': it is valid on one link only"),
        ({"address": ["::ffff:1.2.3.4"]}, "it is an IPv4-mapped address; write 1.2.3.4"),
        (TWO | {"address": ["fd00::1", "FD00:0::1"]}, "no two alike"),
        ({"mac": ["01:00:5e:00:00:01"]}, "MAC address 01:00:5e:00:00:01: not a host's address"),
        ({"hosts": {"00:00:00:00:00:00": 1}}, "MAC address 00:00:00:00:00:00: not a host's address"),
        ({"ports": [1, 2, 1]}, "--ports 1 is given 2 times: give it once"),
        (
            {"hosts": {"02:00:00:00:00:0a": 1, "02:00:00:00:00:0A": 2}},
            "--host 02:00:00:00:00:0a is given 2 times: give it once",
        ),
        (
            {"routes": [texts.parse_route(f"10.0.1.0/24={port},02:00:00:00:00:02") for port in (1, 2)]},
            "--route 10.0.1.0/24 is given 2 times: give it once",
        ),
        ({"mac": ["02:00"]}, "six hexadecimal bytes"),
        ({"ports": [0]}, "port 0: must be from 1 to 509"),
        ({"ports": [510]}, "port 510: must be from 1 to 509"),
        ({"hosts": {"nonsense": 1}}, "MAC address 'nonsense'"),
        ({"routes": [{"destination": "10.0.0.1/8"}]}, "destination, port and next_hop_mac are needed"),
        ({"routes": [texts.parse_route("fd00::/64=1,02:00:00:00:00:02")]}, "destination must be an IPv4 network"),
        ({"drop_rate": 1.5}, "--drop-rate 1.5: accepted are 0 to 1"),
        ({"hello_rate": 0}, "--hello-rate 0: accepted are 1 to 1000000"),
        ({"lease": 0.0}, "--lease 0.0"),
        ({"slots": 0}, "--slots 0"),
        ({"ports": "1,2"}, "ports = '1,2': must be a list"),
        (
            {"address": ["10.0.0.1", 2]},
            "address = ['10.0.0.1', 2]: must be a list; each element must be a text in quotes",
        ),
        ({"device_id": True}, "device_id = True: must be a whole number"),
        ({"ports": [1, True]}, "ports = [1, True]: must be a list; each element must be a whole number"),
        ({"hosts": {"a": "1"}}, "hosts = {'a': '1'}: must be a table; each element must be a whole number"),
        ({"routes": [1]}, "routes = [1]: must be a list; each element must be a table"),
        ({"slots": True}, "slots = True: must be a whole number"),
        ({"calls_per_s": 0.01}, "--calls-per-s 0.01: accepted are 0.1 to 1000000 a second"),
        ({"mtu": 9}, "--mtu 9: accepted are"),
        ({"slots": -1}, "--slots -1: accepted are 1 or more"),
        ({"log_format": "xml"}, "--log-format xml: accepted are text or json"),
        ({"standby": True}, "--standby needs --store"),
        ({"state": "a", "store": "etcd://127.0.0.1:1"}, "--state and --store: give only one of them"),
        ({"lease": "5"}, "lease = '5': must be a number"),
        ({"lease": float("nan")}, "--lease nan: accepted are 0.1 to 3600 seconds"),
    ],
)
def test_what_is_not_accepted_is_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(text)):
        load(None, options).switch_configs()[0]


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (texts.parse_host, "02:00:00:00:00:01"),
        (texts.parse_host, "02:00:00:00:00:01=x"),
        (texts.parse_route, "10.0.0.0/8"),
        (texts.parse_route, "10.0.0.0/8=1"),
        (texts.parse_ports, "1-3"),
    ],
)
def test_options_that_cannot_be_read_show_an_example(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(SettingsError, match=f"{text}.* must be .*, as"):
        parse(text)


def test_a_host_is_said_to_be_at_one_port() -> None:
    option = SCHEMA["hosts"]
    assert option.of_option(["02:00:00:00:00:01=3"]) == {"02:00:00:00:00:01": 3}
    with pytest.raises(SettingsError, match="--host 02:00:00:00:00:01=3, 02:00:00:00:00:01=4: give each once"):
        option.of_option(["02:00:00:00:00:01=3", "02:00:00:00:00:01=4"])


def test_an_unknown_key_is_named(tmp_path: Path) -> None:
    file = tmp_path / "controller.toml"
    file.write_text("prots = [1]")
    with pytest.raises(SettingsError, match=r"unknown prots \(is ports.* meant\?\); `p4reduce controller --exa"):
        load(file, {})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("listen = 7700", "listen = 7700: must be a text in quotes"),
        ("lease = 0", "--lease 0.0: accepted are 0.1 to .* seconds"),
    ],
)
def test_a_value_that_is_not_accepted_is_named_with_its_file(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "controller.toml"
    file.write_text(content)
    with pytest.raises(SettingsError, match=f"--config {file}: {said}"):
        load(file, {})


@pytest.mark.parametrize("content", [b"ports = ", b"\xff"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "controller.toml"
    file.write_bytes(content)
    with pytest.raises(SettingsError, match=f"--config {file}: "):
        load(file, {})


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"--config: cannot read {tmp_path}/none.toml: No such file"):
        load(tmp_path / "none.toml", {})


def test_the_token_is_what_its_file_says(tmp_path: Path) -> None:
    file = tmp_path / "token"
    assert load(None, {}).token() is None
    with pytest.raises(SettingsError, match=f"cannot read {file}: No such file"):
        load(None, {"token_file": str(file)}).token()
    file.write_text("\n")
    with pytest.raises(SettingsError, match="is empty"):
        load(None, {"token_file": str(file)}).token()
    file.write_text("secret\n")
    assert load(None, {"token_file": str(file)}).token() == "secret"


def test_what_a_file_may_have_an_option_may_say() -> None:
    """Only [[switches]] has no option. An option is named like its setting, except for three."""
    assert {key for key, one in SCHEMA.items() if not one.help} == {"switches"}
    renamed = {key: one.option for key, one in SCHEMA.items() if one.option != "--" + key.replace("_", "-")}
    assert renamed == {"hosts": "--host", "routes": "--route", "page_names": "--page-name"}


@pytest.mark.parametrize(
    ("key", "given", "value"),
    [
        ("lease", None, None),
        ("insecure", False, None),  # an option that was not given says nothing
        ("switch", [], None),
        ("slots", 0, 0),  # and a zero that was given is refused later, not passed over
        ("drop_rate", 0.0, 0.0),
        ("ports", "", []),
        ("ports", "1,2", [1, 2]),
        ("switch", ["a:1", "b:2"], ["a:1", "b:2"]),
        ("hosts", ["02:00:00:00:00:01=1", "02:00:00:00:00:02=2"], {"02:00:00:00:00:01": 1, "02:00:00:00:00:02": 2}),
        ("routes", ["10.0.0.0/8=1,m"], [{"destination": "10.0.0.0/8", "port": 1, "next_hop_mac": "m"}]),
    ],
)
def test_an_option_says_what_the_file_says(key: str, given: object, value: object) -> None:
    assert SCHEMA[key].of_option(given) == value


def test_defaults_are_told_by_the_help() -> None:
    assert SCHEMA["lease"].help.endswith("(default 60).")
    assert "(default 127.0.0.1:31314)" in SCHEMA["address"].help
    assert not any("{" in one.help for one in SCHEMA.values())
    one, other = Settings(), Settings()
    one.ports.append(2)
    assert other.ports == [1]


@pytest.mark.parametrize(
    "target", ["127.0.0.1:9559", "127.3.2.1:9559", "[::1]:9559", "localhost:9559", "unix:/run/grpc"]
)
def test_switches_on_this_host_are_reached_in_the_clear(target: str) -> None:
    assert load(None, {"switch": target}).switch_tls() is None


@pytest.mark.parametrize("switches", [{"switch": "10.0.0.9:9559"}, {"switches": [{"switch": "leaf.example:9559"}]}])
def test_switches_on_other_hosts_are_reached_by_tls_or_if_somebody_says_so(
    switches: dict[str, Any], tmp_path: Path
) -> None:
    said = r"--switch (10.0.0.9|leaf.example):9559 is on another host: .* give --switch-ca, or --switch-insecure"
    with pytest.raises(SettingsError, match=said):
        load(None, switches).switch_tls()
    assert load(None, switches | {"switch_insecure": True}).switch_tls() is None
    certificate, _ = self_signed(tmp_path, "switch")
    assert load(None, switches | {"switch_ca": str(certificate)}).switch_tls() is not None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"switch_cert": __file__}, "--switch-cert and --switch-key: give both or neither"),
        ({"switch_ca": __file__, "switch_key": __file__}, "--switch-cert and --switch-key: give both or neither"),
        ({"switch_cert": __file__, "switch_key": __file__}, "--switch-cert needs --switch-ca"),
        ({"switch_ca": __file__}, "--switch-ca .*test_settings.py: no certificate"),
        ({"switch_ca": "/none"}, "cannot read /none: No such file or directory"),
    ],
)
def test_tls_to_switches_that_cannot_be(options: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        load(None, options).switch_tls()


def test_groups_of_ports() -> None:
    for options in ({"lag": [[1, 2], [3, 4]]}, {"switches": [{"switch": "b:1", "lag": [[1, 2], [3, 4]]}]}):
        [config] = load(None, options).switch_configs()
        assert [config.lag_of(port) for port in (2, 4, 5)] == [(1, 2), (3, 4), ()]
    assert SCHEMA["lag"].of_option(["1,2", "3,4"]) == [[1, 2], [3, 4]]
    for groups, said in (([[1, 2], [2, 3]], "--lag: port 2 is given 2 times"), ([[1, 999]], "port 999: must be from")):
        with pytest.raises(SettingsError, match=said):
            load(None, {"lag": groups}).switch_configs()


@pytest.mark.parametrize("switch", ["b:1", ["b:1"]])
def test_a_switch_without_a_name_is_called_by_its_address(switch: str | list[str]) -> None:
    assert Settings(switches=[{"switch": switch}]).uplinks() == {"b:1": ()}
