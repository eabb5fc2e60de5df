# SPDX-License-Identifier: Apache-2.0
"""Device configs: a compiled program with its schema, as one serialized ForwardingPipelineConfig of BF Runtime.

Stratum's BfPipelineConfig has the same fields with the same numbers, so one file serves both servers. P4Runtime carries
it as `p4_device_config`.
"""

from __future__ import annotations

import re
from pathlib import Path

from google.protobuf.message import DecodeError

from p4reduce_targets.bfrt import bfruntime_pb2 as pb
from p4reduce_targets.bfrt.schema import Schema, SchemaError

FILE = "p4reduce.bin"  # in the folder of a build

_NAME_LENGTH = 255  # bytes of a program's or profile's name that the server takes
_ANNOTATED_TABLE = "pipe.SwitchIngress.aggregation.outcomes"


class DeviceConfigError(ValueError):
    """A device config that cannot be read or used; the message says why."""


def read_folder(folder: Path) -> pb.ForwardingPipelineConfig:
    """Return the device config of a build: the folder that `make p4-tofino ARGS="--out ..."` leaves.

    Raises DeviceConfigError.
    """
    path = folder / FILE
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise DeviceConfigError(
            f"cannot read {path}: {error.strerror}; give the folder of one build, as "
            '`make p4-tofino ARGS="--out FOLDER PROFILE"` writes it to FOLDER/PROFILE'
        ) from None
    except DeviceConfigError as error:
        raise DeviceConfigError(f"{path}: {error}") from None


def parse(serialized: bytes) -> pb.ForwardingPipelineConfig:
    """Return a serialized device config. Raises DeviceConfigError."""
    try:
        config = pb.ForwardingPipelineConfig.FromString(serialized)
    except DecodeError:
        raise DeviceConfigError(
            f"the device config ({len(serialized)} bytes) is not a serialized ForwardingPipelineConfig of BF Runtime, "
            "as p4reduce.bin of a build for Tofino is (`p4reduce controller --pipeline FOLDER/PROFILE`)"
        ) from None
    check(config)
    return config


def check(config: pb.ForwardingPipelineConfig) -> None:
    """Raise DeviceConfigError for a config that no server takes."""
    if not config.p4_name or not config.bfruntime_info or len(config.profiles) != 1:
        raise DeviceConfigError(
            "a device config has a name, a schema (bf-rt.json) and one profile; this one has "
            f"{config.p4_name or 'no name'}, {len(config.bfruntime_info)} bytes, {len(config.profiles)} profiles"
        )
    profile = config.profiles[0]
    if not profile.profile_name or not profile.context or not profile.binary:
        raise DeviceConfigError(
            f"the device config of {config.p4_name}: its profile {profile.profile_name or 'without a name'} has "
            f"{len(profile.context)} bytes of context.json and {len(profile.binary)} of a binary; it needs both"
        )
    for name in (config.p4_name, profile.profile_name):
        if len(name.encode()) > _NAME_LENGTH or "/" in name:  # the server makes folders of these names
            raise DeviceConfigError(f"the device config's name {name!r}: accepted are up to {_NAME_LENGTH} bytes, no /")


def is_same_program(one: pb.ForwardingPipelineConfig, other: pb.ForwardingPipelineConfig) -> bool:
    """Return whether both are one program: equal names, schemas and binaries."""
    return (one.p4_name, one.bfruntime_info, [profile.binary for profile in one.profiles]) == (
        other.p4_name,
        other.bfruntime_info,
        [profile.binary for profile in other.profiles],
    )


def cpu_port(config: pb.ForwardingPipelineConfig) -> int:
    """Return the device port that the program uses for packet-in and packet-out. Raises DeviceConfigError."""
    found = _annotated(config, "cpu_port")
    if found is None:
        raise DeviceConfigError(
            f"the program does not say which CPU port it is for: its table {_ANNOTATED_TABLE} has no annotation "
            "@cpu_port(N); compile it from the sources of this release"
        )
    return found


def recirculation_port(config: pb.ForwardingPipelineConfig) -> int | None:
    """Return the port within each pipe (0 to 127) that second passes use; None if the program has no second pass."""
    return _annotated(config, "recirculation_port")


def _annotated(config: pb.ForwardingPipelineConfig, name: str) -> int | None:
    try:
        schema = Schema.parse(config.bfruntime_info)
    except SchemaError as error:
        raise DeviceConfigError(f"the device config of {config.p4_name}: {error}") from None
    if _ANNOTATED_TABLE in schema.tables:
        for annotation in schema.tables[_ANNOTATED_TABLE].annotations:
            if match := re.fullmatch(rf"@{name}\(\s*(\d+)\s*\)", annotation):
                return int(match[1])
    return None
