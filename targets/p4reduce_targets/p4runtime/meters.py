# SPDX-License-Identifier: Apache-2.0
"""Reads and writes of indirect meters."""

from __future__ import annotations

from collections.abc import Iterator

from finsy.proto import p4r
from grpc import StatusCode

from p4reduce_targets.dataplane import DataPlane, MeterConfig
from p4reduce_targets.p4runtime.errors import Refused, invalid, unsupported
from p4reduce_targets.p4runtime.program import Meter, Program
from p4reduce_targets.p4runtime.readback import Undo, store


class Meters:
    """The configurations of all meter cells as they are read back. Each is also set in the data plane."""

    def __init__(self, program: Program, data_plane: DataPlane) -> None:
        self._program = program
        self._data_plane = data_plane
        self._configs: dict[tuple[int, int], p4r.MeterConfig] = {}  # by meter and index

    def write(self, kind: int, entry: p4r.MeterEntry) -> Undo:
        """Configure a cell; without a configuration, it lets every packet pass again."""
        meter = self._program.meter(entry.meter_id)
        if not entry.HasField("index"):
            raise unsupported("Wildcard write is not supported for indirect meters")
        index = _index(meter, entry)
        if kind != p4r.Update.MODIFY:
            raise invalid("INSERT and DELETE update types not supported for meters")
        if entry.HasField("config"):
            self._data_plane.set_meter(meter.name, index, _read_config(meter, entry.config))
            return store(self._configs, (meter.id, index), entry.config)
        self._data_plane.set_meter(meter.name, index, None)
        return store(self._configs, (meter.id, index), None)

    def read(self, wanted: p4r.MeterEntry) -> Iterator[p4r.MeterEntry]:
        """Yield one cell, all cells of a meter, or those of every meter (meter id 0)."""
        program = self._program
        meters = [program.meter(wanted.meter_id)] if wanted.meter_id else list(program.meters.values())
        for meter in meters:
            cells = [_index(meter, wanted)] if wanted.HasField("index") else range(meter.size)
            for index in cells:
                entry = p4r.MeterEntry(meter_id=meter.id)
                entry.index.index = index
                if config := self._configs.get((meter.id, index)):
                    entry.config.CopyFrom(config)
                yield entry

    def replay(self, other: Meters) -> None:
        """Copy the configuration of every cell of `other`; raise Refused if this program has no such meter."""
        for (meter_id, index), config in other._configs.items():
            entry = p4r.MeterEntry(meter_id=meter_id, config=config)
            entry.index.index = index
            self.write(p4r.Update.MODIFY, entry)


def _index(meter: Meter, entry: p4r.MeterEntry) -> int:
    index = entry.index.index
    if index < 0:
        raise invalid("A negative number is not a valid index value")
    if index >= meter.size:
        raise Refused(StatusCode.UNKNOWN, f"{meter.name} has no index {index}: 0 to {meter.size - 1}")
    return index


def _read_config(meter: Meter, config: p4r.MeterConfig) -> MeterConfig:
    if min(config.cir, config.cburst, config.pir, config.pburst) < 0 or config.cir > config.pir:
        raise invalid(f"{meter.name}: rates and bursts from 0 are accepted, and cir up to pir")
    return MeterConfig(config.cir, config.cburst, config.pir, config.pburst)
