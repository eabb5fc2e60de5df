# SPDX-License-Identifier: Apache-2.0
"""Every gRPC channel is made in one place, which leaves out the environment's web proxies."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FINSYS_OWN = ("tests/targets/p4runtime/test_finsy.py", "tests/tofino/test_bfrt_clients.py")  # finsy as others use it
HOME = "hostlib/p4reduce/control/grpc_channels.py"
MAKERS = {"insecure_channel", "secure_channel", "grpc_channel"}  # gRPC's, and finsy's
CLIENTS = {"P4Client", "Switch", "GNMIClient"}  # finsy's, which make channels
RELEVANT = (*MAKERS, "fy.", "finsy.")  # what a file that makes a channel contains


def makes_a_channel(node: ast.AST) -> str:
    """Return the name by which this node makes a channel, or ""."""
    if isinstance(node, ast.Attribute) and node.attr in MAKERS:
        return node.attr
    if isinstance(node, ast.ImportFrom) and (names := MAKERS & {one.name for one in node.names}):
        return ", ".join(sorted(names))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CLIENTS:
        is_finsys = isinstance(node.func.value, ast.Name) and node.func.value.id in ("fy", "finsy")
        has_channel = node.func.attr == "GNMIClient" and ast.unparse(node).endswith("GNMIClient('')")
        return "" if has_channel or not is_finsys else node.func.attr
    return ""


def found(source: str) -> list[str]:
    return [what for node in ast.walk(ast.parse(source)) if (what := makes_a_channel(node))]


@pytest.mark.parametrize(
    ("source", "makes"),
    [
        ("grpc.insecure_channel('a:1')", ["insecure_channel"]),
        ("with grpc.aio.secure_channel('a:1', how): pass", ["secure_channel"]),
        ("from grpc import insecure_channel as f", ["insecure_channel"]),
        ("make = grpc.insecure_channel", ["insecure_channel"]),
        ("fy.P4Client('a:1')", ["P4Client"]),
        ("fy.GNMIClient('a:1')", ["GNMIClient"]),
        ("fy.GNMIClient('')", []),
        ("open_grpc_channel('a:1')", []),
        ("class A(fy.P4Client): pass", []),
    ],
)
def test_what_makes_a_channel_is_found(source: str, makes: list[str]) -> None:
    assert found(source) == makes


def test_channels_are_made_in_one_place() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert HOME in listed
    texts = {file: (ROOT / file).read_text() for file in listed if (ROOT / file).is_file()}
    # Parsing all files takes seconds, and few are relevant.
    makers = {file: found(text) for file, text in texts.items() if any(name in text for name in RELEVANT)}
    assert {file: what for file, what in makers.items() if what and file not in (HOME, *FINSYS_OWN)} == {}
    assert sorted(makers[HOME]) == sorted(["insecure_channel", "secure_channel"] * 2)
