# SPDX-License-Identifier: Apache-2.0
"""Device configs: from the folder of a build, and from P4Runtime's bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from p4reduce_targets.bfrt import bfruntime_pb2 as pb
from p4reduce_targets.bfrt import device_config
from p4reduce_targets.bfrt.device_config import DeviceConfigError
from tests.targets.bfrt import schemas
from tests.targets.bfrt.schemas import outcomes


def config(schema: bytes = b"{}") -> pb.ForwardingPipelineConfig:
    profile = pb.ForwardingPipelineConfig.Profile(profile_name="pipe", context=b"{}", binary=b"1")
    return pb.ForwardingPipelineConfig(p4_name="p4reduce", bfruntime_info=schema, profiles=[profile])


def test_reads_a_folder(tmp_path: Path) -> None:
    there = config(outcomes("@cpu_port(192)"))
    (tmp_path / "p4reduce.bin").write_bytes(there.SerializeToString())
    assert device_config.read_folder(tmp_path) == there


def test_says_which_folder_to_give(tmp_path: Path) -> None:
    with pytest.raises(
        DeviceConfigError, match=r"cannot read .*/p4reduce.bin: No such file or directory; give the folder of one build"
    ):
        device_config.read_folder(tmp_path)
    (tmp_path / "p4reduce.bin").write_bytes(b"{}")
    with pytest.raises(DeviceConfigError, match=r"/p4reduce.bin: the device config \(2 bytes\) is not a serialized"):
        device_config.read_folder(tmp_path)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"p4_name": ""}, "this one has no name"),
        ({"bfruntime_info": b""}, "0 bytes"),
        ({"profiles": []}, "0 profiles"),
        ({"profiles": [{"profile_name": "pipe", "binary": b"1"}]}, "profile pipe has 0 bytes of context.json and 1 of"),
        ({"profiles": [{"context": b"1", "binary": b"1"}]}, "profile without a name"),
        ({"p4_name": "a/b"}, "'a/b': accepted are up to 255 bytes, no /"),
        ({"p4_name": "a" * 256}, "accepted are up to 255 bytes"),
    ],
)
def test_refuses_what_no_server_takes(change: dict[str, object], complaint: str) -> None:
    good = {"p4_name": "p4reduce", "bfruntime_info": b"{}", "profiles": list(config().profiles)}
    with pytest.raises(DeviceConfigError, match=complaint):
        device_config.parse(pb.ForwardingPipelineConfig(**(good | change)).SerializeToString())  # type: ignore[arg-type]


def test_refuses_what_is_no_device_config() -> None:
    with pytest.raises(DeviceConfigError, match=r"the device config \(12 bytes\) is not a serialized Forwarding"):
        device_config.parse(b'{"a": "b"}\n\n')


def test_finds_the_ports_in_annotations() -> None:
    both = config(outcomes("@cpu_port(192)", "@recirculation_port( 68 )"))
    assert (device_config.cpu_port(both), device_config.recirculation_port(both)) == (192, 68)
    assert device_config.recirculation_port(config(outcomes("@cpu_port(2)"))) is None


@pytest.mark.parametrize("schema", [outcomes(), outcomes("@other"), schemas.text()])
def test_a_program_says_which_cpu_port_it_is_for(schema: bytes) -> None:
    with pytest.raises(DeviceConfigError, match=r"has no annotation @cpu_port\(N\)"):
        device_config.cpu_port(config(schema))


def test_programs_are_compared_by_name_schema_and_binary() -> None:
    one, other = config(), config()
    other.profiles[0].pipe_scope.extend([0, 1])  # the server fills these in
    other.profiles[0].context = b""
    assert device_config.is_same_program(one, other)
    other.profiles[0].binary = b"2"
    assert not device_config.is_same_program(one, other)
    assert not device_config.is_same_program(one, config(b"[]"))
