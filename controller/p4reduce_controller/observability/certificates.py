# SPDX-License-Identifier: Apache-2.0
"""The expiry times of the certificates in use, as a metric."""

from __future__ import annotations

from collections.abc import Iterator

from cryptography import x509
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from p4reduce.control.certificates import TlsFiles


class CertificateExpiry(Collector):
    """The metric of the expiry times of certificates."""

    def __init__(self, *files: TlsFiles | None) -> None:
        self._files = [one for one in files if one is not None]

    def collect(self) -> Iterator[Metric]:
        metric = GaugeMetricFamily(
            "p4reduce_certificate_expiry_timestamp_seconds",
            "When the certificate in use from that file expires, or the last of several authorities (Unix time)",
            labels=["file"],
        )
        expiries = {file: expiry for files in self._files for file, expiry in expiries_of(files).items()}
        for file, expiry in sorted(expiries.items()):
            metric.add_metric([file], expiry)
        yield metric


def expiries_of(files: TlsFiles) -> dict[str, float]:
    """Return the expiry times by file, as Unix times.

    A chain expires with its first certificate to expire. Authorities expire with the last one, because while
    authorities are replaced, either one's certificates are accepted.
    """
    pem = files.current()
    sources = (files.certificate, pem.certificate, min), (files.authorities, pem.authorities, max)
    return {file: pick(expiries) for file, text, pick in sources if text and (expiries := _expiries(text))}


def expiry_of(der: bytes) -> float:
    """Return the expiry time of a certificate as Unix time. Raises ValueError."""
    return x509.load_der_x509_certificate(der).not_valid_after_utc.timestamp()


def _expiries(text: bytes) -> list[float]:
    try:
        return [one.not_valid_after_utc.timestamp() for one in x509.load_pem_x509_certificates(text)]
    except ValueError:  # OpenSSL has accepted the file, so it is in use; this reader is stricter
        return []
