# SPDX-License-Identifier: Apache-2.0
"""A switch with a made-up program, behind the tests' BF Runtime server, which needs nothing of p4c."""

from __future__ import annotations

import json
from collections.abc import Sequence

from finsy.proto import p4i
from google.protobuf import text_format

from p4reduce_targets.bfrt import bfruntime_pb2 as pb
from p4reduce_targets.dataplane import Call, Count, Key, MeterConfig, Replica
from tests.support.bfrt import bfruntime_pb2 as bfrt
from tests.support.bfrt.device import Device
from tests.support.bfrt.ports import BOARDS
from tests.targets.bfrt import schemas

CONFIG = pb.ForwardingPipelineConfig(
    p4_name="made_up",
    bfruntime_info=schemas.PROGRAM,
    profiles=[pb.ForwardingPipelineConfig.Profile(profile_name="pipe", context=b"{}", binary=b"1")],
)

P4INFO = text_format.Parse(
    """
    tables {
      preamble { id: 1 name: "Ingress.jobs" }
      match_fields { id: 1 name: "port" bitwidth: 9 match_type: EXACT }
      match_fields { id: 2 name: "destination" bitwidth: 32 match_type: LPM }
      action_refs { id: 11 }
      action_refs { id: 12 }
      direct_resource_ids: 8
      size: 64
    }
    tables {
      preamble { id: 2 name: "Ingress.rules" }
      match_fields { id: 1 name: "op" bitwidth: 8 match_type: TERNARY }
      match_fields { id: 2 name: "flags" bitwidth: 3 match_type: EXACT }
      action_refs { id: 12 }
      const_default_action_id: 12
      size: 512
    }
    actions {
      preamble { id: 11 name: "Ingress.admit" }
      params { id: 1 name: "bit" bitwidth: 32 }
      params { id: 2 name: "group" bitwidth: 12 }
    }
    actions { preamble { id: 12 name: "Ingress.discard" } }
    counters { preamble { id: 3 name: "Ingress.outcomes" } spec { unit: BOTH } size: 17 }
    direct_counters { preamble { id: 8 name: "Ingress.jobs_counted" } spec { unit: BOTH } direct_table_id: 1 }
    meters { preamble { id: 5 name: "Ingress.hellos" } spec { unit: PACKETS } size: 512 }
    """,
    p4i.P4Info(),
)


def program(cpu_port: int) -> pb.ForwardingPipelineConfig:
    """Return the program as a build for a board with this CPU port."""
    tables = [
        table
        for part in (schemas.PROGRAM, schemas.outcomes(f"@cpu_port({cpu_port})"))
        for table in json.loads(part)["tables"]
    ]
    made = pb.ForwardingPipelineConfig()
    made.CopyFrom(CONFIG)
    made.bfruntime_info = schemas.text(*tables)
    return made


class Plane:
    """A data plane that notes writes, and processes no packets."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, Key, int], Call] = {}
        self.defaults: dict[str, Call] = {}
        self.groups: dict[int, set[Replica]] = {}
        self.cells: dict[tuple[str, int], Count] = {}
        self.meters: dict[tuple[str, int], MeterConfig | None] = {}
        self.counts: dict[tuple[str, Key, int], Count] = {}

    def insert(self, table: str, key: Key, priority: int, call: Call) -> None:
        self.entries[table, key, priority] = call

    modify = insert

    def delete(self, table: str, key: Key, priority: int) -> None:
        del self.entries[table, key, priority]

    def set_default(self, table: str, call: Call | None) -> None:
        if call is None:
            self.defaults.pop(table, None)
        else:
            self.defaults[table] = call

    def set_group(self, group: int, replicas: Sequence[Replica]) -> None:
        self.groups[group] = set(replicas)

    def read_counters(self, cells: Sequence[tuple[str, int]]) -> list[Count]:
        return [self.cells.get(cell, Count(0, 0)) for cell in cells]

    def write_counter(self, counter: str, index: int, count: Count) -> None:
        self.cells[counter, index] = count

    def set_meter(self, meter: str, index: int, config: MeterConfig | None) -> None:
        self.meters[meter, index] = config

    def read_direct_counters(self, entries: Sequence[tuple[str, Key, int]]) -> list[Count]:
        return [self.counts.get(entry, Count(0, 0)) for entry in entries]

    def write_direct_counter(self, table: str, key: Key, priority: int, count: Count) -> None:
        self.counts[table, key, priority] = count


def device(installed: pb.ForwardingPipelineConfig | None = CONFIG) -> Device:
    """Return a device with two pipes, which runs the program, or none."""
    made = Device(BOARDS["tofino1"], lambda _binary: Plane())  # type: ignore[arg-type, return-value]
    if installed is not None:
        made.install(for_server(installed))
    return made


def for_server(config: pb.ForwardingPipelineConfig) -> bfrt.ForwardingPipelineConfig:
    """Return a device config as the server's definitions have it."""
    return bfrt.ForwardingPipelineConfig.FromString(config.SerializeToString())
