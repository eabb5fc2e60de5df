# SPDX-License-Identifier: Apache-2.0
"""The settings of the controller, from options and a TOML file. Options have precedence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from p4reduce.control import diagnostics
from p4reduce.control.certificates import CertificateError, TlsFiles
from p4reduce.control.diagnostics import canonical_address
from p4reduce.protocol.constants import AGGREGATION_PORT, MAX_AGGREGATORS
from p4reduce.transport.frames import IPV4_AND_UDP_BYTES, IPV6_AND_UDP_BYTES
from p4reduce_controller.base.limits import Rates
from p4reduce_controller.base.listening import ServiceConfig, is_loopback
from p4reduce_controller.base.schema import Range, SettingsError, check, setting, settings_of
from p4reduce_controller.base.toml import read_toml
from p4reduce_controller.jobs.admission import DEFAULT_SLOTS
from p4reduce_controller.jobs.deadlines import LONGEST_REJOIN_TIME, REJOIN_TIME
from p4reduce_controller.observability.logs import FORMATS
from p4reduce_controller.p4runtime.builds import DEFAULT_MTU, LARGEST_BUILD, LEAST_MTU, MOST_MTU
from p4reduce_controller.p4runtime.election import DEFAULT_RANK, HIGHEST_RANK
from p4reduce_controller.p4runtime.switch_config import SwitchConfig
from p4reduce_controller.settings.texts import (
    SHORTEST_STORE_LEASE,
    as_mac,
    as_port,
    as_route,
    as_uplinks,
    parse_address,
    parse_host,
    parse_ports,
    parse_route,
    parse_store,
    parse_uplink,
)
from p4reduce_controller.switches.frames import Endpoint, synthetic_mac
from p4reduce_controller.switches.trees import NamedUplink, Trees, trees_of
from p4reduce_controller.tenants.access import LONGEST_NAME

LONGEST_LEASE = 3600.0
LONGEST_STORE_LEASE = 60
MOST_HELLOS = 1_000_000
_RATE = Range(0.1, 1_000_000, "a second")


@dataclass
class Settings:
    """The settings. Fields have the names of the TOML keys; paths are relative to the working directory."""

    switch: list[str] = setting(
        ["127.0.0.1:9559"],
        "HOST:PORT of the switch's P4Runtime server (default {default}). Several switches share each job's slots.",
        scope="switch",
    )
    switch_ca: str = setting("", "Use TLS to the switches. PEM file with the certificate authorities to trust.")
    switch_cert: str = setting("", "PEM file with the client certificate for switches.")
    switch_key: str = setting("", "PEM file with the private key of --switch-cert.")
    switch_insecure: bool = setting(False, "Allow switches on other hosts without TLS.")
    device_id: int = setting(1, "P4Runtime device id (default {default}).", scope="either", within=Range(1, 2**64 - 1))
    election_id: int = setting(
        DEFAULT_RANK,
        "High 64 bits of the P4Runtime election id (default {default}); the low bits are the time.",
        within=Range(0, HIGHEST_RANK),
    )
    take_over: bool = setting(
        False, "Take over from a controller that is the switch's primary, and remove its entries; it then stands by."
    )
    listen: str = setting(
        ServiceConfig.listen, "HOST:PORT to serve on; port 0 takes any free port (default {default})."
    )
    address: list[str] = setting(
        ["127.0.0.1"],
        f"IP[:UDPPORT] of the aggregator (default {{default}}:{AGGREGATION_PORT}), one for each --switch, in the "
        "same order. With a port, an IPv6 address is in brackets, as in a URL. A single switch may have more: it "
        "answers ARP, neighbour solicitations and ping for them.",
        scope="switch",
    )
    mac: list[str] = setting(
        [],
        "MAC address of the switch (default: made of its IP address), one for each --switch.",
        scope="switch",
    )
    ports: list[int] = setting(
        [1], "Ports in use, as 1,2,3 (default {default}).", scope="switch", once=True, parse=parse_ports
    )
    lag: list[list[int]] = setting(
        [],
        "Ports of one link aggregation group (LAG), or of equal paths (ECMP), as 1,2: a worker's packets may arrive at "
        "any of them. Repeatable.",
        scope="switch",
        parse=parse_ports,
    )
    hosts: dict[str, int] = setting(
        {}, "MAC=PORT: the port that a host is on.", option_name="host", scope="switch", parse=parse_host
    )
    routes: list[dict[str, Any]] = setting(
        [],
        "CIDR=PORT,MAC: the port and the next hop's MAC address for a network.",
        option_name="route",
        scope="switch",
        parse=parse_route,
    )
    uplink: list[str] = setting(
        [],
        "LEAF:PORT=SPINE, both as in --switch. The leaf adds up its workers' packets, and sends the sum through "
        "this port to the spine, as one of the spine's workers. With an uplink to each of several spines, it does so "
        "with a share of each job's slots for each spine.",
    )
    spare: list[str] = setting(
        [],
        "A switch as in --switch, without a parent, that new jobs use only while no other switch can be used. The "
        "slots of running jobs go on there when no other switch is left.",
    )
    switches: list[dict[str, Any]] = setting([])
    lease: float = setting(
        ServiceConfig.lease,
        "Seconds until a rank whose host vanished counts as lost; a killed one does at once (default {default}).",
        within=Range(0.1, LONGEST_LEASE, "seconds"),
    )
    slots: int = setting(
        DEFAULT_SLOTS, "Slots for a job that does not ask for a number (default {default}).", within=Range(1)
    )
    keep_slots: bool = setting(
        False,
        "Do not move running jobs to other slots. Otherwise, while other jobs wait for room, the controller moves "
        "running jobs between two operations, and gives them fewer slots if they hardly use them. If a switch is lost, "
        "it moves their slots there to other switches.",
    )
    token_file: str = setting("", "File with the token that callers must present.")
    users: str = setting(
        "", "TOML file with users, digests of their tokens, and quotas. It is read again when it changes."
    )
    audit_log: str = setting("", "File for the audit log, in JSON lines: who did what (default none). Needs --users.")
    tls_cert: str = setting("", "PEM file with the server certificate.")
    tls_key: str = setting("", "PEM file with the private key of --tls-cert.")
    tls_ca: str = setting(
        "",
        "PEM file with certificate authorities. Only callers with a certificate that these have signed are admitted.",
    )
    insecure: bool = setting(False, "Allow other hosts without TLS.")
    joins_per_s: float = setting(
        Rates.joins,
        "Ranks per second that one host may start, if there are no --users (default {default}). A burst may have "
        "ten seconds' worth.",
        within=_RATE,
    )
    calls_per_s: float = setting(
        Rates.calls,
        "Other requests per second from one host, to the service and the page (default {default}).",
        within=_RATE,
    )
    messages_per_s: float = setting(
        Rates.messages,
        "Messages, or kilobytes of messages, per second from the ranks of one host (default {default}).",
        within=_RATE,
    )
    metrics: str = setting("", "HOST:PORT for Prometheus and health checks, without a token (default off).")
    metrics_tls: bool = setting(
        False, "Serve --metrics with TLS as well: with --tls-cert, and with --tls-ca if that is given."
    )
    page: str = setting("", "HOST:PORT for the status page, which asks for the token if there is one (default off).")
    page_names: list[str] = setting(
        [],
        "Host name by which browsers may open a page without a token, besides localhost, addresses and the host "
        "of --page.",
        option_name="page_name",
    )
    log_format: str = setting(
        "text", f"Format of the log on stderr: {' or '.join(FORMATS)} (default {{default}}).", choices=FORMATS
    )
    drop_rate: float = setting(
        0.0,
        "Share of packets to lose, on all --ports, in both directions, for experiments (default {default}).",
        within=Range(0, 1),
    )
    hello_rate: int = setting(
        SwitchConfig.hello_rate,
        "HELLO packets per second that each port may send to the controller, and the size of a burst (default "
        "{default}). A rank that joins sends 10 a second.",
        scope="either",
        within=Range(1, MOST_HELLOS),
    )
    mtu: int = setting(
        DEFAULT_MTU,
        f"Smallest MTU of the links between ranks and switches (default {{default}}). From {LARGEST_BUILD} on "
        f"(IPv6: {LARGEST_BUILD + IPV6_AND_UDP_BYTES - IPV4_AND_UDP_BYTES}), packets carry 8 lanes of 256 values, "
        "instead of 4 lanes of 64.",
        within=Range(LEAST_MTU, MOST_MTU, "bytes"),
    )
    pipeline: str = setting(
        "", "Directory with p4info.txtpb and p4reduce.json (for Tofino p4reduce.bin), instead of a build for --mtu."
    )
    state: str = setting(
        "",
        "File for the state of running jobs (default none). With it, jobs continue when this controller dies, or "
        "ends by SIGTERM, and is started again. Without it, jobs end with the controller.",
    )
    rejoin_time: float = setting(
        REJOIN_TIME,
        "Seconds that ranks have to rejoin a restarted controller (default {default}).",
        within=Range(0.1, LONGEST_REJOIN_TIME, "seconds"),
    )

    store: str = setting(
        "",
        "etcd://HOST:PORT,HOST:PORT, or with a key prefix etcd://HOST:PORT/PREFIX: keep the state of running jobs "
        "in etcd instead of --state. Several controllers can share it: one serves, and another takes over when "
        "that one ends.",
    )
    standby: bool = setting(
        False, "With --store: while another controller serves, stand by, and take over when it ends."
    )
    store_lease: int = setting(
        SHORTEST_STORE_LEASE,
        "Seconds after which a controller that no longer reaches etcd is replaced (default {default}).",
        within=Range(SHORTEST_STORE_LEASE, LONGEST_STORE_LEASE, "seconds"),
    )
    store_ca: str = setting("", "Use TLS to etcd. PEM file with the certificate authorities to trust.")
    store_cert: str = setting("", "PEM file with the client certificate for etcd.")
    store_key: str = setting("", "PEM file with the private key of --store-cert.")
    store_insecure: bool = setting(False, "Allow etcd on other hosts without TLS.")

    def uplinks(self) -> dict[str, tuple[NamedUplink, ...]]:
        """Return the uplinks of each switch, by name. Raises SettingsError."""
        tables = self._tables()
        names = self._names()
        for one in self.switches:
            name = one.get("name", "a")
            if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME or not name.isprintable():
                raise SettingsError(f"name = {name!r}: accepted are 1 to {LONGEST_NAME} printable characters")
        if len(set(names)) != len(names):
            raise SettingsError(f"switches {', '.join(names)}: give each switch a name of its own")
        ways = [parse_uplink(text) for text in self.uplink]
        ways += [(name, *up) for name, one in tables if one.get("uplink") for up in as_uplinks(one["uplink"])]
        parents: dict[str, tuple[NamedUplink, ...]] = dict.fromkeys(names, ())
        for name, port, to in ways:
            if strange := [each for each in (name, to) if each not in names]:
                raise SettingsError(
                    f"uplink {name}:{port}={to}: {strange[0]} is not a switch; the switches are {', '.join(names)}"
                )
            if same := [one for one in parents[name] if port == one[0] or to == one[1]]:
                raise SettingsError(
                    f"uplink {name}:{port}={to}: there is {name}:{same[0][0]}={same[0][1]} already; give one for each "
                    "port and parent"
                )
            parents[name] += ((as_port(port), to),)
        checked_trees(parents)
        return parents

    def spares(self) -> set[str]:
        """Return the names of the switches that are spares. Raises SettingsError."""
        names, spares = self._names(), set(map(canonical_address, self.spare))
        if strange := sorted(spares - set(names)):
            raise SettingsError(f"spare {strange[0]}: it is not a switch; the switches are {', '.join(names)}")
        for name, one in self._tables():
            spare = one.get("spare", False)
            if type(spare) is not bool:
                raise SettingsError(f"spare = {spare!r} of the switch {name}: accepted are true and false")
            spares |= {name} if spare else set()
        checked_trees(self.uplinks(), spares)
        return spares

    def _tables(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the [[switches]] tables, with the names of the switches."""
        return [(_name_of(one), one) for one in self.switches]

    def _names(self) -> list[str]:
        return [name for name, _ in self._tables()] or self._targets()

    def _targets(self) -> list[str]:
        """Return the P4Runtime servers. Each is written in one way, since it also identifies the switch."""
        return list(map(canonical_address, self.switch))

    def switch_configs(self) -> list[SwitchConfig]:
        """Return the configuration of each switch. Raises SettingsError."""
        if self.switches:
            for key, one in SCHEMA.items():
                if one.spec.scope == "switch" and getattr(self, key) != one.default:
                    raise SettingsError(f"{key} belongs in each [[switches]] table, and is not accepted beside them")
            return [config for one in self.switches for config in _of_one(one, self).switch_configs()]
        grouped = [port for group in self.lag for port in group]
        for port in [*self.ports, *self.hosts.values(), *grouped]:
            as_port(port)
        _check_once("--lag: port", grouped)
        _check_once("--ports", self.ports)
        _check_once("--host", [as_mac(host) for host in self.hosts])
        _check_once("--route", [as_route(route).destination for route in self.routes])
        addresses = [parse_address(text) for text in self.address or [""]]
        switches = len(self.switch)
        if switches == 1:
            addresses, more = addresses[:1], addresses[1:]
        else:
            more = []
            self._check_several(addresses)
        macs = [as_mac(text) for text in self.mac] or [synthetic_mac(ip) for ip, _ in addresses]
        if len(macs) != switches:
            raise SettingsError(f"--mac is given {len(macs)} times for {switches} switches: give one for each")
        return [
            SwitchConfig(
                target=target,
                address=Endpoint(mac, *address),
                device_id=self.device_id,
                more_addresses=[ip for ip, _ in more],
                ports=self.ports,
                lags=tuple(map(tuple, self.lag)),
                hosts={as_mac(host): port for host, port in self.hosts.items()},
                routes=[as_route(route) for route in self.routes],
                drop_rate=self.drop_rate,
                hello_rate=self.hello_rate,
            )
            for target, address, mac in zip(self._targets(), addresses, macs, strict=True)
        ]

    def serving_tls(self) -> TlsFiles | None:
        """Return the certificates to serve with; None for plain text. Raises SettingsError."""
        for given, option in ((self.tls_ca, "--tls-ca"), (self.metrics_tls, "--metrics-tls")):
            if given and not self.tls_cert:
                raise SettingsError(f"{option} needs --tls-cert and --tls-key as well")
        return tls_files("tls", self.tls_cert, self.tls_key, self.tls_ca)

    def switch_tls(self) -> TlsFiles | None:
        """Return the certificates for connections to switches; None for plain text. Raises SettingsError."""
        targets = [config.target for config in self.switch_configs()]
        for target in targets:
            try:
                diagnostics.check_address("--switch", target, "127.0.0.1:9559")
            except ValueError as error:
                raise SettingsError(str(error)) from None
        return self._calling_tls("switch", targets, "switches are", "control the switch")

    def store_tls(self) -> TlsFiles | None:
        """Return the certificates for connections to etcd; None for plain text. Raises SettingsError."""
        members, _ = parse_store(self.store)
        return self._calling_tls("store", members, "etcd is", "read and change the jobs' secrets")

    def _calling_tls(self, prefix: str, addresses: Iterable[str], whom: str, risk: str) -> TlsFiles | None:
        """Return the certificates to call the servers at `addresses`, which only their authorities identify.

        `whom`, `risk`: parts of error messages.
        """
        cert, key, ca, insecure = (getattr(self, f"{prefix}_{part}") for part in ("cert", "key", "ca", "insecure"))
        if cert and key and not ca:
            raise SettingsError(f"--{prefix}-cert needs --{prefix}-ca as well, by which {whom} known")
        files = tls_files(prefix, cert, key, ca)
        for address in addresses if files is None and not insecure else ():
            if not (address.startswith("unix:") or is_loopback(address.rpartition(":")[0])):
                raise SettingsError(
                    f"--{prefix} {address} is on another host: without TLS, anyone on the network path can {risk}; "
                    f"give --{prefix}-ca, or --{prefix}-insecure if the network is trusted"
                )
        return files

    def _check_several(self, addresses: list[tuple[str, int]]) -> None:
        """Refuse for several switches what is only meaningful for one."""
        switches = len(self.switch)
        if len(set(self._targets())) != switches or not switches:
            raise SettingsError(f"--switch {', '.join(self.switch)}: give one or more different addresses")
        if len(addresses) != switches or len(set(addresses)) != switches:
            raise SettingsError(
                f"--address {', '.join(self.address)} for {switches} switches: give one for each, in the order of "
                "--switch, and no two alike"
            )
        if self.hosts or self.routes:
            raise SettingsError(
                f"--host and --route are for a single switch, and there are {switches}: use [[switches]] in --config"
            )

    def token(self) -> str | None:
        """Return the token file's contents without surrounding white space. Raises SettingsError."""
        if not self.token_file:
            return None
        try:
            return diagnostics.read_token(self.token_file)
        except ValueError as error:
            raise SettingsError(str(error)) from None


def _name_of(table: Mapping[str, Any]) -> str:
    """Return the name of a switch in [[switches]]: by default its address, alone or as the only one of a list."""
    switch = table.get("switch")
    name = table.get("name") or (switch[0] if isinstance(switch, list) and switch else switch)
    return canonical_address(str(name))


SCHEMA = settings_of(Settings)


def load(file: Path | None, options: Mapping[str, Any]) -> Settings:
    """Return the settings from the file, if there is one, and the options that are not None. Raises SettingsError."""
    values: dict[str, Any] = {}
    if file is not None:
        elsewhere = "`p4reduce controller --example-config` shows all that are known"
        values = check(read_toml("--config", file), SCHEMA, f"--config {file}", elsewhere=elsewhere)
    values |= check({key: value for key, value in options.items() if value is not None}, SCHEMA)
    settings = Settings(**values)
    check_store(settings)
    return settings


def checked_trees(
    parents: Mapping[str, Sequence[NamedUplink]], spares: Collection[str] = ()
) -> tuple[Trees, tuple[int, ...]]:
    """Return what `trees_of` returns. Raises SettingsError."""
    try:
        trees, switches = trees_of(parents, spares)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    if len(trees.roots) > MAX_AGGREGATORS:
        raise SettingsError(f"{len(trees.roots)} switches without a parent: accepted are up to {MAX_AGGREGATORS}")
    return trees, switches


def tls_files(prefix: str, cert: str, key: str, ca: str) -> TlsFiles | None:
    """Return the files of the options PREFIX-cert, PREFIX-key and PREFIX-ca; None if there are none.

    Raises SettingsError.
    """
    called = f"--{prefix}-cert", f"--{prefix}-key", f"--{prefix}-ca"
    try:
        return TlsFiles(cert, key, ca, called=called) if cert or key or ca else None
    except CertificateError as error:
        raise SettingsError(str(error)) from None


def check_store(settings: Settings) -> None:
    """Raise SettingsError if options for the store contradict each other."""
    if settings.standby and not settings.store:
        raise SettingsError("--standby needs --store, by which controllers know who serves")
    if settings.store and settings.state:
        raise SettingsError("--state and --store: give only one of them")
    if settings.store:
        parse_store(settings.store)


def _check_once(option: str, values: Iterable[object]) -> None:
    """Raise SettingsError if a value occurs twice."""
    for value, times in Counter(values).items():
        if times > 1:
            raise SettingsError(f"{option} {value} is given {times} times: give it once")


def _of_one(switch: Mapping[str, Any], common: Settings) -> Settings:
    """Return the settings of a [[switches]] table, as if it were the only switch. `common`: those of the controller."""
    also = ("name", "uplink", "spare")
    known = {key: SCHEMA[key] for key in sorted(SCHEMA) if SCHEMA[key].spec.scope != "controller"}
    values = check({key: value for key, value in switch.items() if key not in also}, known, "switches", also)
    if "switch" not in values:
        raise SettingsError(f"switches: {dict(switch)} lacks switch, the address of its P4Runtime server")
    settings = replace(common, switches=[], **values)
    if len(settings.switch) != 1:
        raise SettingsError(f"switch = {settings.switch!r}: each [[switches]] table needs exactly one")
    return settings
