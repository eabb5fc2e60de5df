# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys

import pytest

import p4reduce


def test_everything_promised_is_there() -> None:
    assert {name for name in p4reduce.__all__ if getattr(p4reduce, name) is None} == set()
    assert p4reduce.__version__[0].isdigit()
    with pytest.raises(AttributeError, match="'nothing'"):
        p4reduce.nothing  # type: ignore[attr-defined] # noqa: B018


def test_import_is_light() -> None:
    """Nor does a Communicator need torch or scapy."""
    program = """
import sys, p4reduce
heavy = {"grpc", "torch", "numpy", "scapy"} & set(sys.modules)
assert not heavy, heavy
p4reduce.Communicator
heavy = {"torch", "scapy"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", program], check=True)
