# SPDX-License-Identifier: Apache-2.0
"""The options PREFIX-cert, PREFIX-key and PREFIX-ca, wherever TLS is spoken."""

from __future__ import annotations

from collections.abc import Iterable

from p4reduce.control.certificates import CertificateError, TlsFiles
from p4reduce_controller.base.listening import is_loopback
from p4reduce_controller.base.schema import SettingsError


def tls_files(prefix: str, cert: str, key: str, ca: str) -> TlsFiles | None:
    """None where they are not given. Raises SettingsError."""
    called = f"--{prefix}-cert", f"--{prefix}-key", f"--{prefix}-ca"
    try:
        return TlsFiles(cert, key, ca, called=called) if cert or key or ca else None
    except CertificateError as error:
        raise SettingsError(str(error)) from None


def serving_files(cert: str, key: str, ca: str, *, metrics: bool) -> TlsFiles | None:
    """Of what the controller serves, `metrics` too. Raises SettingsError."""
    for given, option in ((ca, "--tls-ca"), (metrics, "--metrics-tls")):
        if given and not cert:
            raise SettingsError(f"{option} needs --tls-cert and --tls-key as well")
    return tls_files("tls", cert, key, ca)


def calling_files(
    prefix: str, cert: str, key: str, ca: str, places: Iterable[str], *, whom: str, risk: str, insecure: bool
) -> TlsFiles | None:
    """To call the servers at `places`, which are known by `ca` alone; None is in the clear: on this host, or where that
    is `insecure` and allowed. `whom` and `risk` are for errors. Raises SettingsError."""
    if cert and key and not ca:
        raise SettingsError(f"--{prefix}-cert needs --{prefix}-ca as well, by which {whom} known")
    files = tls_files(prefix, cert, key, ca)
    for place in places if files is None and not insecure else ():
        if not (place.startswith("unix:") or is_loopback(place.rpartition(":")[0])):
            raise SettingsError(
                f"--{prefix} {place} is on another host: without TLS, anyone on the network path can {risk}; give "
                f"--{prefix}-ca, or --{prefix}-insecure if the network is trusted"
            )
    return files
