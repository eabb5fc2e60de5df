# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


def self_signed(folder: Path, name: str, alternative: str = "", days: int = 2) -> tuple[Path, Path]:
    """Return a certificate for `name` that is its own authority, and its key. `alternative`: as "IP:127.0.0.1"; by
    default the name. `days`: until it ends. Skips the test where there is no openssl."""
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
