# SPDX-License-Identifier: Apache-2.0
"""The reference page of P4Runtime entities: tables, actions, counters and registers from the P4Info of all builds."""

from __future__ import annotations

from collections.abc import Iterable

from finsy.proto import p4i
from google.protobuf import text_format

from website.repository import ROOT

COMPILED = ROOT / "p4src" / "compiled"
OTHERS = {
    "jumbo/p4info.txtpb": "larger packets (`--mtu 9000`)",
    "tofino1-64.p4info.txtpb": "`tofino1-64`",
    "tofino1-32.p4info.txtpb": "`tofino1-32`",
    "tofino2-64.p4info.txtpb": "`tofino2-64`",
}
_KINDS = ("tables", "counters", "meters", "registers", "controller_packet_metadata")


def read(name: str) -> p4i.P4Info:
    return text_format.Parse((COMPILED / name).read_text(), p4i.P4Info())


def page() -> str:
    info = read("p4info.txtpb")
    actions = {action.preamble.id: action for action in info.actions}
    used = {one.id for table in info.tables for one in table.action_refs}
    parts = [
        "# P4 tables\n",
        f"This is what a P4Runtime client sees of the program {info.pkg_info.name} {info.pkg_info.version}, as it is"
        " shipped for BMv2, sim and native (`p4src/compiled/p4info.txtpb`). The controller writes the tables;"
        " [protocol.md](../protocol.md) explains the purpose.\n",
        "## Tables\n",
        *(_table(table, actions) for table in info.tables),
        "## Actions of these tables\n",
        "| action | parameters |\n|---|---|\n"
        + "\n".join(_action(action) for action in info.actions if action.preamble.id in used)
        + "\n",
        "## Counters, meters and registers\n",
        "| name | kind | cells | |\n|---|---|---|---|\n" + "\n".join(_cells(info)) + "\n",
        "The registers for the values of slots are not listed: there is one for each value of a packet.\n",
        "## Packets from and to the controller\n",
        *(_packets(one) for one in info.controller_packet_metadata),
        "## Other builds\n",
        "| build | additional | missing |\n|---|---|---|\n" + "\n".join(_others(info)) + "\n",
    ]
    return "\n".join(parts)


def _short(name: str) -> str:
    return name.removeprefix("SwitchIngress.")


def _table(table: p4i.Table, actions: dict[int, p4i.Action]) -> str:
    keys = [
        f"| `{key.name}` | {p4i.MatchField.MatchType.Name(key.match_type).lower()} | {key.bitwidth} |"
        for key in table.match_fields
    ]
    named = [
        f"`{_short(actions[one.id].preamble.name)}`" + (" (default only)" if one.scope == one.DEFAULT_ONLY else "")
        for one in table.action_refs
    ]
    return (
        f"### {_short(table.preamble.name)}\n\n"
        f"{table.size} entries at most. Actions: {', '.join(named)}.\n\n"
        "| key | match | bits |\n|---|---|---|\n" + "\n".join(keys) + "\n"
    )


def _action(action: p4i.Action) -> str:
    parameters = ", ".join(f"`{one.name}` ({one.bitwidth} bits)" for one in action.params)
    return f"| `{_short(action.preamble.name)}` | {parameters} |"


def _cells(info: p4i.P4Info) -> Iterable[str]:
    for counter in info.counters:
        unit = p4i.CounterSpec.Unit.Name(counter.spec.unit).lower()
        yield f"| `{_short(counter.preamble.name)}` | counter | {counter.size} | {unit} |"
    for meter in info.meters:
        unit = p4i.MeterSpec.Unit.Name(meter.spec.unit).lower()
        yield f"| `{_short(meter.preamble.name)}` | meter | {meter.size} | {unit} |"
    for register in info.registers:
        name = _short(register.preamble.name)
        if ".value" not in name and not name.startswith("lane"):
            yield f"| `{name}` | register | {register.size} | {register.type_spec.bitstring.bit.bitwidth} bits |"


def _packets(metadata: p4i.ControllerPacketMetadata) -> str:
    rows = [f"| {one.id} | `{one.name}` | {one.bitwidth} |" for one in metadata.metadata]
    return f"### {metadata.preamble.name}\n\n| id | field | bits |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def _others(info: p4i.P4Info) -> Iterable[str]:
    ours = _names(info)
    for name, what in OTHERS.items():
        theirs = _names(read(name))
        more, less = sorted(theirs - ours), sorted(ours - theirs)
        yield f"| {what} | {', '.join(f'`{one}`' for one in more)} | {', '.join(f'`{one}`' for one in less)} |"


def _names(info: p4i.P4Info) -> set[str]:
    """Return the names of the entities, without actions and without value registers, which differ in number."""
    names = {_short(one.preamble.name) for kind in _KINDS for one in getattr(info, kind)}
    return {name for name in names if "value" not in name and "pair" not in name and "lane" not in name}
