# SPDX-License-Identifier: Apache-2.0
"""The tests' BF Runtime server answers as the SDE's sources say: counters, meters and registers.

Each test names the function of `bf-drivers/src` where a reader would not find it at once.
"""

from __future__ import annotations

import pytest

from tests.support.bfrt import bfruntime_pb2 as bfrt
from tests.support.bfrt.plain_client import PlainClient
from tests.support.bfrt.schema import METER_FIELDS, NO_LIMIT
from tests.support.bfrt.server import Server

from .entries import (
    ADMIT,
    ADMITTED,
    BYTES,
    HELLOS,
    JOB,
    JOBS,
    OUTCOMES,
    PACKETS,
    SEQS,
)

pytestmark = pytest.mark.p4c


def test_a_counter_is_as_old_as_its_synchronisation(server: Server, client: PlainClient) -> None:
    """Reads without from_hw have what was synchronised last (`pipe_mgr_stat_mgr_ent_query`)."""
    cell = client.entry(OUTCOMES, {"$COUNTER_INDEX": 2})

    def packets(**flags: bool) -> int:
        wanted = bfrt.TableEntry()
        wanted.CopyFrom(cell)
        wanted.table_flags.MergeFrom(bfrt.TableFlags(**flags))
        (entry,) = client.read(wanted)
        return int(client.values(entry)[PACKETS])

    counters = server.device.plane._counters[OUTCOMES.removeprefix("pipe.")]  # type: ignore[attr-defined]
    counters[0][2] = 5
    assert packets() == 0
    assert packets(from_hw=True) == 5
    counters[0][2] = 6
    assert packets() == 5
    assert client.write(client.operation(OUTCOMES, "Sync"), client.operation(OUTCOMES, "SyncCounters")) == ["", ""]
    assert packets() == 6
    written = client.entry(OUTCOMES, {"$COUNTER_INDEX": 2}, {PACKETS: 40, BYTES: 50})
    assert client.write(("INSERT", written)) == [""]
    assert packets() == 40
    assert counters[0][2] == 40
    assert client.write(("DELETE", client.entry(OUTCOMES))) == [""]
    assert packets(from_hw=True) == 0


def test_operations_that_are_refused(client: PlainClient) -> None:
    unknown = client.operation(OUTCOMES, "Sync")
    unknown.table_operation.table_id = 99
    answers = client.write(client.operation(HELLOS, "Sync"), client.operation(OUTCOMES, "Learn"), unknown)
    assert answers == [
        "UNIMPLEMENTED Operation not supported Operation not supported",
        "UNIMPLEMENTED Operation not supported Operation not supported",
        "NOT_FOUND Table not found Object not found",
    ]


def test_cells_that_are_refused(client: PlainClient) -> None:
    """Cells are set, not added or removed (`verify_key_for_idx_tbls`, `BfRtTableObj::tableEntryDel`)."""
    outside = client.entry(OUTCOMES, {"$COUNTER_INDEX": 17}, {PACKETS: 1, BYTES: 1})
    inside = client.entry(OUTCOMES, {"$COUNTER_INDEX": 16}, {PACKETS: 1, BYTES: 1})
    answers = client.write(("INSERT", outside), ("DELETE", inside), ("INSERT_OR_MODIFY", inside))
    assert answers == [
        f"INVALID_ARGUMENT Table Add failed table:{OUTCOMES} Invalid arguments",
        f"UNIMPLEMENTED Table Entry delete failed table:{OUTCOMES} Operation not supported",
        f"UNIMPLEMENTED Table AddOrMod failed table:{OUTCOMES} Operation not supported",
    ]
    wanted = client.entry(OUTCOMES, {"$COUNTER_INDEX": 16}, {PACKETS: 0})
    assert client.try_read(wanted)[1] == [
        f"UNIMPLEMENTED Data Allocate failed during entry read table:{OUTCOMES} Operation not supported"
    ]
    assert len(client.read(client.entry(OUTCOMES))) == 17


def test_direct_counters(server: Server, client: PlainClient) -> None:
    """A MODIFY sets the counter only with reset_stats (`tableEntryModInternal`, BF_RT_SKIP_STAT_RESET)."""

    def count() -> tuple[int, int]:
        (entry,) = client.read(client.entry(JOBS, JOB))
        values = client.values(entry)
        return values[PACKETS], values[BYTES]

    assert client.write(("INSERT", client.entry(JOBS, JOB, {**ADMITTED, PACKETS: 7, BYTES: 8}, ADMIT))) == [""]
    assert count() == (7, 8)
    alone = client.entry(JOBS, JOB, {PACKETS: 1, BYTES: 2})
    assert client.write(("MODIFY", alone)) == [""]
    assert count() == (7, 8)
    alone.table_flags.reset_stats = True
    assert client.write(("MODIFY", alone)) == [""]
    assert count() == (1, 2)
    whole = client.entry(JOBS, JOB, ADMITTED, ADMIT)
    assert client.write(("MODIFY", whole)) == [""]
    assert count() == (1, 2)
    server.device.plane._tables[JOBS.removeprefix("pipe.")].entries[tuple(JOB.values())][1][:] = [9, 99]  # type: ignore
    assert count() == (1, 2)
    assert client.write(client.operation(JOBS, "SyncCounters")) == [""]
    assert count() == (9, 99)


def test_meters(server: Server, client: PlainClient) -> None:
    """At first nothing limits a meter. The chip rounds rates down, also to 0 (`pipe_mgr_meter_drv_get_rate_params`).

    A read has what the chip has.
    """
    fields = [f"$METER_SPEC_{name}" for _, name in next(iter(METER_FIELDS.values()))]
    cell = client.entry(HELLOS, {"$METER_INDEX": 4})
    unlimited = client.values(client.read(cell)[0])
    most = 649_481_027_584  # 511 tokens a cycle
    assert unlimited == dict(zip(fields, (most, most, 255 << 31, 255 << 31), strict=True))
    meter = server.device.plane._meters[HELLOS.removeprefix("pipe.")]  # type: ignore[attr-defined]

    def greens(rate: int, burst: int, actual: int) -> int:
        written = client.entry(HELLOS, {"$METER_INDEX": 4}, dict(zip(fields, (rate, rate, burst, burst), strict=True)))
        assert client.write(("MODIFY", written)) == [""]
        assert client.values(client.read(cell)[0])[fields[0]] == actual
        colours = []
        for _ in range(20):
            meter.execute(4, 1)
            colours.append(meter.colour)
        return colours.count(0)

    assert greens(NO_LIMIT, NO_LIMIT, most) == 20
    assert greens(1_000_000, 512, 998_787) == 20
    assert greens(100, 10, 94) == 10
    assert greens(12, 2, 9) == 2
    assert greens(1, 1, 0) == 1
    assert greens(0, 10, 0) == 0
    assert client.write(("DELETE", client.entry(HELLOS))) == [""]
    assert client.values(client.read(cell)[0]) == unlimited


def test_registers(server: Server, client: PlainClient) -> None:
    """A read has a value for each pipe, and is as old as its synchronisation."""
    cell = client.entry(SEQS, {"$REGISTER_INDEX": 3})
    server.device.plane.registers[SEQS.removeprefix("pipe.")][0][3] = 5  # type: ignore[attr-defined]
    name = f"{SEQS.removeprefix('pipe.')}.f1"
    assert client.values(client.read(cell)[0]) == {name: [0, 0]}
    assert client.write(client.operation(SEQS, "Sync")) == [""]
    assert client.values(client.read(cell)[0]) == {name: [5, 0]}
    assert client.write(("DELETE", client.entry(SEQS))) == [""]
    cell.table_flags.from_hw = True
    assert client.values(client.read(cell)[0]) == {name: [0, 0]}
    assert client.write(("MODIFY", client.entry(SEQS, {"$REGISTER_INDEX": 3}, {name: 77}))) == [""]
    assert client.values(client.read(cell)[0]) == {name: [77, 77]}  # in each pipe
