# SPDX-License-Identifier: Apache-2.0
"""The expiry of certificates: of those in the given files, and of those that servers present."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator

from p4reduce.control.certificates import TlsFiles
from p4reduce.control.diagnostics import plain_host
from p4reduce.control.finding import Finding
from p4reduce_controller.observability.certificates import expiries_of, expiry_of

WARNING_DAYS = 14  # days
_DAY = 86400.0
_TIMEOUT = 3.0


def check_files(files: TlsFiles) -> Iterator[Finding]:
    """Check the expiry of the certificates in the files."""
    for file, expiry in expiries_of(files).items():
        yield check_expiry(f"certificate {file}", expiry)


def check_server(name: str, address: str, files: TlsFiles) -> Iterator[Finding]:
    """Check the expiry of the certificate that the server presents. Yield nothing if no server speaks TLS there.

    Other checks report that a server is missing.

    `name`: the name of the server in the finding.
    `files`: the certificate and key to present if the server asks.
    """
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # only its date is needed
    context.set_alpn_protocols(["h2"])
    try:
        if files.certificate:
            context.load_cert_chain(files.certificate, files.key)
        with (
            socket.create_connection((plain_host(host), int(port)), _TIMEOUT) as connection,
            context.wrap_socket(connection) as spoken,
        ):
            der = spoken.getpeercert(binary_form=True)
        expiry = expiry_of(der or b"")
    except (OSError, ValueError):
        return
    yield check_expiry(f"certificate of {name}", expiry)


def check_expiry(subject: str, expiry: float) -> Finding:
    """Return the finding on a certificate that expires at `expiry`, a Unix time."""
    days = (expiry - time.time()) / _DAY
    on = time.strftime("%Y-%m-%d", time.gmtime(expiry))
    if days < 0:
        advice = "replace it, since no one accepts it any more; files are read again when they change"
        return Finding(subject, "problem", f"expired on {on}", advice)
    if days < WARNING_DAYS:
        advice = "replace it before that; files are read again when they change"
        return Finding(subject, "warning", f"expires within {int(days) + 1} days, on {on}", advice)
    return Finding(subject, "ok", f"expires in {int(days)} days, on {on}")
