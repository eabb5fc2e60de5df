# SPDX-License-Identifier: Apache-2.0
"""A device with the program's tables, which accepts every entry, counts nothing, and needs no p4c."""

from __future__ import annotations

from collections.abc import Sequence

from p4reduce_targets.dataplane import Count

from . import bfruntime_pb2 as bfrt
from . import programs
from .device import Device
from .schema import derive


class Idle:
    """A data plane that does nothing."""

    def _accept(self, *_: object) -> None: ...

    insert = modify = delete = set_default = set_group = set_meter = _accept
    write_counter = write_direct_counter = _accept

    def read_counters(self, cells: Sequence[object]) -> list[Count]:
        """Return 0 for all cells."""
        return [Count(0, 0)] * len(cells)

    read_direct_counters = read_counters


def device_config(profile: str) -> bfrt.ForwardingPipelineConfig:
    """Return a device config with a profile's tables, with all its slots, and a binary for this device alone."""
    info = programs.p4info(profile, slots=None)
    registers = {register.preamble.name: (register.size, 1) for register in info.registers}
    config = bfrt.ForwardingPipelineConfig(p4_name="p4reduce", bfruntime_info=derive(info, registers))
    config.profiles.add(profile_name="pipe", context=programs.context_of(info).dump(), binary=b"idle")
    return config


def device(profile: str) -> Device:
    """Return a device that runs a profile's program."""
    made = Device(programs.board(profile), lambda _binary: Idle())  # type: ignore[arg-type, return-value]
    made.install(device_config(profile))
    return made
