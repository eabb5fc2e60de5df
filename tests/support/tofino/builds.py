# SPDX-License-Identifier: Apache-2.0
"""Builds of the program for Tofino, as switches for the data plane tests, which execute p4c's IR."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

from finsy.proto import p4i
from google.protobuf import text_format

from tests.support.dataplane.switch import UPLINKS, Switch
from tests.support.dataplane.targets import CPU_PORT, TARGETS, Embedded, Unavailable
from tests.support.scripts import P4SRC, compiler, script

from .switch import load_switch

tofino = script("tofino")
PROFILES: tuple[str, ...] = tuple(tofino.PROFILES)
SLOTS = 256  # enough for tests
IPV4_BITS, IPV6_BITS = 32, 128  # of an address in a table

TARGETS["tofino"] = lambda: Embedded(load_switch)
_folder = tempfile.TemporaryDirectory(prefix="p4reduce-tofino-")


class TofinoSwitch(Switch):
    """A profile of the program for Tofino under test.

    Its P4Info is that of the program for BMv2 with the same packets, since the interface is the same. A packet that
    completes a round counts only as completed, while BMv2 also counts it as added (or started), or as stored. `counts`
    includes it in added. At a leaf, this also stands for the packet that completed the rack's round, which counts only
    as sent_up.
    """

    counts_once = True
    counts_refused = True
    entered_alone = "added"

    def __init__(self, profile: str, program: Path | None = None) -> None:
        super().__init__("tofino", program or build(profile))
        self.can_be_leaf = tofino.PROFILES[profile].can_be_leaf
        self.guards_keys = tofino.PROFILES[profile].tofino > 1

    def counts(self) -> dict[str, int]:
        counts = super().counts()
        if "completed" in counts:
            counts["added"] = counts.get("added", 0) + counts["completed"]
        return counts


@functools.cache
def build(profile: str, p4src: Path = P4SRC) -> Path:
    """Return a folder with the P4Info and the IR of a profile. Raises Unavailable if p4c is missing."""
    to = Path(tempfile.mkdtemp(prefix=f"{profile}-", dir=_folder.name))
    try:
        (to / "p4info.txtpb").write_text(shared_p4info(profile))
        source = p4src / "tna" / "p4reduce.p4"
        tofino.check(tofino.PROFILES[profile], to / "p4reduce.json", source, SLOTS=SLOTS, CPU_PORT=CPU_PORT)
    except tofino.ToolMissing as missing:
        raise Unavailable(str(missing)) from None
    except subprocess.CalledProcessError as error:
        raise RuntimeError(error.stderr) from None
    return to


def shared_p4info(profile: str) -> str:
    """Return the P4Info of a build for BMv2 that has a profile's packets and tables, without VLANs and IPv6.

    Raises Unavailable if p4c is missing.
    """
    info = bmv2(tofino.PROFILES[profile].block_size) / "p4info.txtpb"
    parsed = text_format.Parse(info.read_text(), p4i.P4Info())
    if not tofino.PROFILES[profile].can_be_leaf:
        kept = [table for table in parsed.tables if table.preamble.name != UPLINKS]
        del parsed.tables[:]
        parsed.tables.extend(kept)
    in_vlan = next(one for one in parsed.actions if one.preamble.name.endswith(".address_in_vlan"))
    parsed.actions.remove(in_vlan)
    for table in parsed.tables:
        for field in [one for one in table.match_fields if one.name == "vlan"]:
            table.match_fields.remove(field)
        for reference in [one for one in table.action_refs if one.id == in_vlan.preamble.id]:
            table.action_refs.remove(reference)
    fields = [field for table in parsed.tables for field in table.match_fields]
    for one in (*fields, *(parameter for action in parsed.actions for parameter in action.params)):
        if one.bitwidth == IPV6_BITS:
            one.bitwidth = IPV4_BITS
    return text_format.MessageToString(parsed)


@functools.cache
def bmv2(block_size: int) -> Path:
    """Return a build for BMv2 with the packets of a profile. Raises Unavailable if p4c is missing."""
    if shutil.which("p4c-bm2-ss") is None:
        raise Unavailable("p4c-bm2-ss is not on PATH")
    to = Path(_folder.name) / f"bmv2-{block_size}"
    compiler().compile_program(to, ["-DLANES=1", f"-DBLOCK_SIZE={block_size}", f"-DSLOTS={SLOTS}"])
    return to
