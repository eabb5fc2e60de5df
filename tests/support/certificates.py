# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


def self_signed(folder: Path, name: str, alternative: str = "", days: int = 2) -> tuple[Path, Path]:
    """Return the files of a self-signed certificate and its key. Skips the test if openssl is missing.

    name: the common name, and the stem of both files.
    alternative: the subject's alternative name, such as "IP:127.0.0.1". The default is the DNS name `name`.
    days: the validity of the certificate.
    """
    key, certificate = folder / f"{name}.key.pem", folder / f"{name}.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        str(days),
        "-subj",
        f"/CN={name}",
    ]
    command += ["-addext", f"subjectAltName={alternative or f'DNS:{name}'}"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not on PATH")
    return certificate, key
