# SPDX-License-Identifier: Apache-2.0
"""The generated code is that of jobs.proto, and importing it needs nothing big."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from p4reduce.control import generate, jobs_pb2
from p4reduce_controller.etcd import rpc_pb2

HERE = Path(generate.__file__).parent


@pytest.mark.skipif(importlib.util.find_spec("grpc_tools") is None, reason="grpcio-tools is not installed")
def test_the_stubs_are_those_of_the_proto(tmp_path: Path) -> None:
    # In a process of its own, since one process cannot load two files that define the same messages.
    done = subprocess.run(
        [sys.executable, generate.__file__, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    made = {path.name: path.read_text() for path in map(Path, done.stdout.split())}
    committed = {name: (HERE / name).read_text() for name in generate.STUBS}
    # Other versions of the tools write other code around the same description.
    described = re.compile(r"AddSerializedFile\((.*)\)")
    assert described.findall(made["jobs_pb2.py"]) == described.findall(committed["jobs_pb2.py"])
    methods = re.compile(r"'/p4reduce\.jobs\.v1\.Jobs/\w+'")
    assert methods.findall(made["jobs_pb2_grpc.py"]) == methods.findall(committed["jobs_pb2_grpc.py"])


@pytest.mark.parametrize("stubs", [*HERE.glob("*_pb2*.py"), Path(rpc_pb2.__file__)], ids=lambda path: path.name)
def test_the_stubs_run_with_every_protobuf_and_grpcio_that_we_allow(stubs: Path) -> None:
    """Newer tools write such as ask for their own version, and refuse an older one, or one two major versions newer."""
    text = stubs.read_text()
    assert "ValidateProtobufRuntimeVersion" not in text
    assert "GRPC_GENERATED_VERSION" not in text
    assert "_registered_method" not in text


def test_the_hand_written_types_name_every_method() -> None:
    text = (HERE / "jobs_pb2_grpc.pyi").read_text()
    for method in jobs_pb2.DESCRIPTOR.services_by_name["Jobs"].methods:
        assert f"    {method.name}: grpc." in text
        assert f"def {method.name}(" in text


def test_a_host_needs_neither_torch_nor_the_controllers_packages() -> None:
    program = "import sys, p4reduce.control.client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"torch", "finsy", "scapy", "matplotlib", "prometheus_client", "p4reduce_controller"}
