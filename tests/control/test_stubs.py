# SPDX-License-Identifier: Apache-2.0
"""The generated code is that of the .proto files, and importing it needs nothing big."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from p4reduce.control import jobs_pb2, rpc
from p4reduce_controller.etcd import rpc_pb2
from p4reduce_targets.bfrt import bfruntime_pb2

STUBS = [Path(module.__file__) for module in (jobs_pb2, rpc_pb2, bfruntime_pb2)]


@pytest.mark.parametrize("stubs", STUBS, ids=lambda path: path.name)
@pytest.mark.skipif(importlib.util.find_spec("grpc_tools") is None, reason="grpcio-tools is not installed")
def test_the_stubs_are_those_of_the_proto(stubs: Path, tmp_path: Path) -> None:
    # The compiler runs in another process, because one process cannot load two files that define the same messages.
    proto, root = stubs.with_name(stubs.name.replace("_pb2.py", ".proto")), stubs.parents[2]
    options = [f"--proto_path={root}", f"--python_out={tmp_path}", str(proto)]
    done = subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # Other versions of the tools write other code around the same description.
    described = re.compile(r"AddSerializedFile\((.*)\)")
    made = (tmp_path / stubs.relative_to(root)).read_text()
    assert described.findall(made) == described.findall(stubs.read_text())


@pytest.mark.parametrize("stubs", STUBS, ids=lambda path: path.name)
def test_the_stubs_run_with_every_protobuf_that_we_allow(stubs: Path) -> None:
    """Newer tools write such as ask for their own version, and refuse an older one, or one two major versions newer."""
    assert "ValidateProtobufRuntimeVersion" not in stubs.read_text()


def test_the_stub_has_types_for_every_method() -> None:
    assert list(rpc.JobsStub.__annotations__) == [method.name for method in rpc.METHODS]
    for name, kind, request, reply in rpc.METHODS:
        style = {"unary_unary": "UnaryUnary", "stream_stream": "StreamStream"}[kind]
        types = f"[pb.{request.DESCRIPTOR.name}, pb.{reply.DESCRIPTOR.name}]"
        assert rpc.JobsStub.__annotations__[name] == f"grpc.{style}MultiCallable{types}"
