# SPDX-License-Identifier: Apache-2.0
"""Plain-language texts for the errors of the system and gRPC about files, addresses and connections."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

_OF_ERRNO = {
    errno.EADDRINUSE: "another program uses the port",
    errno.EADDRNOTAVAIL: "this machine does not have that address",
    errno.EPERM: "only root may do this",
}
SILENT = "a process listens there but does not answer"
_OTHER_FORMS = ("unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:")  # gRPC's own forms of addresses
# Parts of gRPC's texts, each with its meaning. The first part that occurs in the text counts.
_OF_GRPC = (
    ("Connection refused", "connection refused"),
    ("Misformatted domain name", "that is not a valid host name"),
    ("Domain name not found", "there is no host of that name"),
    ("DNS resolution failed", "there is no host of that name"),
    ("address lookup failed", "there is no host of that name"),
    ("Name or service not known", "there is no host of that name"),
    ("No route to host", "no route to host"),
    ("Network is unreachable", "the network is unreachable"),
    ("No such file or directory", "there is no such socket"),
    ("http1.x server", "a web server answers there, not a gRPC server"),
    ("Failed parsing HTTP/2", "the server there does not speak gRPC"),
    ("before receiving SETTINGS frame", SILENT),
    ("Handshake read failed", SILENT),
)
# Meanings of gRPC's codes, if the text says no more.
_OF_CODES = {
    "DEADLINE_EXCEEDED": "no answer in time",
    "UNIMPLEMENTED": "the server there does not know this call",
    "UNAVAILABLE": "it is not reachable",
    "CANCELLED": "the connection was closed",
}
# Parts of gRPC's texts about TLS, each with its meaning and what to do; {ca} is the option for authorities to trust.
_OF_TLS = (
    ("certificate has expired", "its certificate has expired; it needs a new one"),
    ("certificate is not yet valid", "its certificate is not valid yet; compare the clocks of both hosts"),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "its certificate is not signed by an authority that is trusted here; give the authority that signed it, with "
        "{ca}",
    ),
    ("Hostname Verification", "its certificate is for another host name; use an address that the certificate names"),
    ("WRONG_VERSION_NUMBER", "it does not use TLS; leave out {ca}"),
)
_PROBE_TIMEOUT = 2.0  # seconds


def of_os(error: OSError) -> str:
    """Return what went wrong, without the error number and the file's name."""
    return _OF_ERRNO.get(error.errno or 0) or error.strerror or str(error)


def of_grpc(text: str, code: str = "") -> str:
    """Return the meaning of gRPC's details, or the details themselves if it is not known. `code`: the code's name."""
    for part, meaning in _OF_GRPC:
        if part in text:
            return meaning
    of_code = _OF_CODES.get(code, code.lower().replace("_", " "))
    if not text or text.lower() == code.lower().replace("_", " "):
        return of_code or "no details"
    return f"{of_code} ({text})" if code in ("DEADLINE_EXCEEDED", "UNIMPLEMENTED") else text


def of_tls(text: str, ca: str) -> str:
    """Return what is wrong with TLS and what to do; "" if gRPC's details do not tell.

    ca: the option that names the authorities to trust.
    """
    return next((meaning.format(ca=ca) for part, meaning in _OF_TLS if part in text), "")


def speaks_tls(address: str) -> bool:
    """Try a TLS handshake with HOST:PORT, and return whether a server there speaks TLS."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((plain_host(host), int(port)), _PROBE_TIMEOUT) as probe,
            context.wrap_socket(probe),
        ):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except (OSError, ValueError):
        return False


def counted(number: int, what: str) -> str:
    """Return the number with its noun, in the plural if need be: "1 job", "2,000 jobs"."""
    ending = "" if number == 1 else "es" if what.endswith("ch") else "s"
    return f"{number:,} {what}{ending}"


def read(what: str, file: str | Path) -> bytes:
    """Return the file's bytes. Raises ValueError, in which `what` names the option and the file's purpose."""
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ValueError(f"{what}: cannot read {file}: {of_os(error)}") from None


def read_token(file: str | Path) -> str:
    """Return the token in a file, without white space around it. Raises ValueError, which does not show the token."""
    try:
        token = read("--token-file", file).decode("ascii").strip()
    except UnicodeDecodeError:
        raise ValueError(f"--token-file {file}: the token must be ASCII") from None
    if not token or any(character.isspace() or not character.isprintable() for character in token):
        said = "is empty" if not token else "has more than one word"
        raise ValueError(f"--token-file {file}: the file must hold one token, but it {said}")
    return token


def check_address(what: str, text: str, example: str, least: int = 1, *, of_grpc: bool = True) -> None:
    """Raise ValueError unless `text` is HOST:PORT, with a port of at least `least`.

    of_grpc: accept gRPC's other forms, too.
    """
    if of_grpc and text.startswith(_OTHER_FORMS):
        return
    host, _, port = (text, "", "") if text.endswith("]") else text.rpartition(":")
    scheme, slashes, rest = text.partition("://")
    if slashes:
        advice = f"; leave out {scheme}://" if rest else ""
    elif text.isdigit():
        advice = f"; the host is missing, as in 127.0.0.1:{text}"
    elif text.count(":") > 1 and not host.startswith("["):
        advice = "; write an IPv6 address in brackets, as in [::1]:7700"
    elif not (host and port):
        advice = "; the port is missing" if ":" not in text or not port else "; the host is missing"
    elif not (port.isascii() and port.isdigit() and least <= int(port) < 65536):
        advice = f"; {port} is not a port number"
    elif "[" in host and (wrong := _wrong_in_brackets(host)):
        advice = f"; {wrong}"
    else:
        return
    raise ValueError(f"{what} {text}: must be HOST:PORT, as in {example}{advice}")


def _wrong_in_brackets(host: str) -> str:
    """Return why the text is not an IPv6 address in brackets that can be reached; "" if it is."""
    try:
        address = IPv6Address(plain_host(host) if host.startswith("[") and host.endswith("]") else "")
    except ValueError:
        return f"{host} is not an IPv6 address in brackets"
    if address.is_link_local and address.scope_id is None:
        return "a link-local address needs its zone, as in [fe80::1%eth0]:7700"
    return ""


def canonical_address(address: str) -> str:
    """Return HOST:PORT with an IPv6 address as the system writes it (RFC 5952). Anything else is returned unchanged.

    An IPv4-mapped address becomes the IPv4 address. Texts of one address are then equal. gRPC compares them with the
    addresses in certificates.
    """
    host, bracket, port = address.partition("]")
    ip, percent, zone = plain_host(host).partition("%")
    if not (bracket and host.startswith("[")):
        return address
    try:
        known = IPv6Address(ip)
    except ValueError:
        return address
    if known.ipv4_mapped is not None:
        return f"{known.ipv4_mapped}{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, known.packed)}{percent}{zone}]{port}"


def plain_host(host: str) -> str:
    """Return the host in the form of system calls: without brackets, and with a zone as in fe80::1%eth0."""
    return host.strip("[]").replace("%25", "%")


def cannot_listen(address: str) -> str:
    """Try to bind HOST:PORT, and return why that fails; "" if it works at one of the host's addresses."""
    if address.startswith("unix:"):
        folder = Path(address[5:]).parent
        return "" if folder.is_dir() and os.access(folder, os.W_OK) else f"{folder} is not a writable folder"
    host, _, port = address.rpartition(":")
    why = ""
    try:
        for family, kind, _, _, sockaddr in socket.getaddrinfo(plain_host(host), int(port), type=socket.SOCK_STREAM):
            if not (why := _cannot_bind(family, kind, sockaddr)):
                return ""
    except socket.gaierror:
        return "there is no host of that name"
    return why


def _cannot_bind(family: int, kind: int, sockaddr: tuple[Any, ...]) -> str:
    port = sockaddr[1]
    try:
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(sockaddr)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"{of_os(error)}; `ss -ltnp 'sport = :{port}'` shows which"
        if error.errno == errno.EACCES:
            return f"port {port} is below 1024, and such ports need root"
        return of_os(error)
    return ""


def check_folder(what: str, folder: Path) -> None:
    """Raise ValueError if there is a file at the path of the folder."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{what} {folder}: must be a folder, and this is a file")
