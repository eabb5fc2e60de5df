# SPDX-License-Identifier: Apache-2.0
"""Device configs of the program for Tofino, as tests install them, and devices that run them."""

from __future__ import annotations

import copy
import functools
import subprocess
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

from finsy.proto import p4i
from google.protobuf import text_format

from tests.support.dataplane.targets import Unavailable
from tests.support.tofino.builds import SLOTS, tofino
from tests.support.tofino.ir import load as load_ir
from tests.support.tofino.switch import TofinoSwitch
from tests.support.tofino.translate import Translation, Translator

from . import bfruntime_pb2 as bfrt
from .device import Context, Default, Device
from .ports import BOARDS, Board
from .schema import derive


def board(profile: str) -> Board:
    """Return a board for a profile."""
    return BOARDS[profile.partition("-")[0]]


def load(profile: str) -> Callable[[bytes], TofinoSwitch]:
    """Return a loader of p4c's IR of a profile, which is compressed, since it has tens of megabytes."""
    return lambda binary: TofinoSwitch(copy.deepcopy(_translation(binary)), tofino.PROFILES[profile].cpu_port)


@functools.lru_cache(maxsize=4)
def _translation(binary: bytes) -> Translation:
    try:
        return Translator(load_ir(zlib.decompress(binary))).run()
    except zlib.error as error:
        raise ValueError(str(error)) from None


def p4info(profile: str, slots: int | None = SLOTS) -> p4i.P4Info:
    """Return the P4Info of a profile, with so many slots; None: as the profile has."""
    info = text_format.Parse(tofino.p4info(profile).read_text(), p4i.P4Info())
    for register in info.registers if slots else ():
        register.size = 2 * slots
    return info


def device_config(profile: str, name: str = "p4reduce", slots: int = SLOTS) -> bfrt.ForwardingPipelineConfig:
    """Return the device config of a profile, whose binary is p4c's IR. Raises `Unavailable` if p4c is missing."""
    config = bfrt.ForwardingPipelineConfig(p4_name=name)
    config.MergeFrom(_nameless_config(profile, slots))
    return config


@functools.cache
def _nameless_config(profile: str, slots: int) -> bfrt.ForwardingPipelineConfig:
    made = tofino.PROFILES[profile]
    with tempfile.TemporaryDirectory() as folder:
        ir = Path(folder) / "p4reduce.json"
        try:
            tofino.check(made, ir, SLOTS=slots)
        except tofino.ToolMissing as missing:
            raise Unavailable(str(missing)) from None
        except subprocess.CalledProcessError as error:
            raise RuntimeError(error.stderr) from None
        binary = zlib.compress(ir.read_bytes(), level=1)
    info = p4info(profile, slots)
    registers = {one: (len(words[0]), len(words)) for one, words in load(profile)(binary).registers.items()}
    config = bfrt.ForwardingPipelineConfig()
    config.bfruntime_info = derive(info, registers)
    config.profiles.add(profile_name="pipe", context=context_of(info).dump(), binary=binary)
    return config


def context_of(info: p4i.P4Info) -> Context:
    """Return what a context.json says of tables, from P4Info."""
    names = {action.preamble.id: action.preamble.name for action in info.actions}
    defaults = {}
    for table in info.tables:
        action = table.const_default_action_id or table.initial_default_action.action_id
        if action:
            given = [int.from_bytes(one.value, "big") for one in table.initial_default_action.arguments]
            defaults[table.preamble.name] = Default(names[action], given, table.const_default_action_id != 0)
    return Context(defaults, frozenset(table.preamble.name for table in info.tables if table.is_const_table))


def device(profile: str, installed: bool = True) -> Device:
    """Return a device for a profile, which runs it already, or nothing (`--skip-p4`)."""
    made = Device(board(profile), load(profile))
    if installed:
        made.install(device_config(profile))
    return made


def write_folder(profile: str, to: Path, slots: int = SLOTS) -> Path:
    """Write the files of a build that controllers and switches read, as `make p4-tofino` leaves them."""
    (to / "p4reduce.bin").write_bytes(device_config(profile, slots=slots).SerializeToString())
    (to / "p4info.txtpb").write_text(text_format.MessageToString(p4info(profile, slots)))
    return to
