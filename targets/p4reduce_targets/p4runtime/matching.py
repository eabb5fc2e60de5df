# SPDX-License-Identifier: Apache-2.0
"""Conversion of match keys and actions between P4Runtime's messages and the data plane's types."""

from __future__ import annotations

from collections.abc import Sequence

from finsy.proto import p4i, p4r
from grpc import StatusCode

from p4reduce_targets.dataplane import Call, Exact, Key, Lpm, Ternary
from p4reduce_targets.p4runtime.bytestrings import decode, encode
from p4reduce_targets.p4runtime.errors import Refused, invalid
from p4reduce_targets.p4runtime.program import EXACT, LPM, Action, Field, Program, Table

_WHICH: dict[int, str] = {EXACT: "exact", LPM: "lpm", p4i.MatchField.TERNARY: "ternary"}


def read_key(table: Table, entry: p4r.TableEntry) -> tuple[Key, int]:
    """Return the key, in the order of the table's fields, and the priority; raise Refused if any field is invalid."""
    given = {match.field_id: match for match in entry.match}
    if len(given) != len(entry.match) or not given.keys() <= {item.id for item in table.fields}:
        raise invalid(f"Unknown or repeated field in match key of {table.name}")
    key = tuple(_read_field(table, item, given.get(item.id)) for item in table.fields)
    if table.has_priorities and entry.priority <= 0:
        raise invalid(f"Zero or negative priority for ternary match in {table.name}")
    if not table.has_priorities and entry.priority != 0:
        raise invalid(f"Non-zero priority for non-ternary match in {table.name}")
    return key, entry.priority


def _read_field(table: Table, item: Field, match: p4r.FieldMatch | None) -> Exact | Lpm | Ternary:
    where = f"{item.name} of {table.name}"
    if match is None:
        if item.match_type == EXACT:
            raise invalid(f"Missing non-ternary field in match key: {where}")
        return Lpm(0, 0) if item.match_type == LPM else Ternary(0, 0)
    if match.WhichOneof("field_match_type") != _WHICH[item.match_type]:
        raise invalid(f"Invalid match type: {where} is {_WHICH[item.match_type]}")
    if item.match_type == EXACT:
        return Exact(decode(match.exact.value, item.bits, where))
    if item.match_type == LPM:
        value, length = decode(match.lpm.value, item.bits, where), match.lpm.prefix_len
        if not 0 < length <= item.bits:
            raise invalid(f"Prefix length of {where} must be 1 to {item.bits}, not {length}; omit it to match anything")
        if value & ((1 << (item.bits - length)) - 1):
            raise invalid(f"Invalid LPM value: {where} has bits set after its prefix")
        return Lpm(value, length)
    value, mask = decode(match.ternary.value, item.bits, where), decode(match.ternary.mask, item.bits, where)
    if mask == 0:
        raise invalid(f"Mask of {where} must not be 0; omit it to match anything")
    if value & ~mask:
        raise invalid(f"Invalid ternary value: {where} has bits set outside its mask")
    return Ternary(value, mask)


def write_key(table: Table, key: Key, priority: int, entry: p4r.TableEntry) -> None:
    """Put the key into `entry` in canonical form: fields that match anything are omitted."""
    entry.priority = priority
    for item, part in zip(table.fields, key, strict=True):
        if isinstance(part, Exact):
            entry.match.add(field_id=item.id).exact.value = encode(part.value)
        elif isinstance(part, Lpm):
            if part.prefix_length:
                lpm = entry.match.add(field_id=item.id).lpm
                lpm.value, lpm.prefix_len = encode(part.value), part.prefix_length
        elif part.mask:
            ternary = entry.match.add(field_id=item.id).ternary
            ternary.value, ternary.mask = encode(part.value), encode(part.mask)


def read_action(program: Program, table: Table, action: p4r.TableAction, *, default: bool) -> Call:
    """Return the action with its arguments; raise Refused unless the table has it and all parameters are given."""
    if action.WhichOneof("type") != "action":
        raise invalid(f"Cannot provide indirect action for direct table {table.name}")
    found = program.action(action.action.action_id)
    if found.id not in table.scopes:
        raise invalid(f"Invalid action for table: {table.name} has no {found.name}")
    wrong = p4i.ActionRef.TABLE_ONLY if default else p4i.ActionRef.DEFAULT_ONLY
    if table.scopes[found.id] == wrong:
        where = "as default action" if default else "in table entry"
        kind = p4i.ActionRef.Scope.Name(wrong)
        raise Refused(StatusCode.PERMISSION_DENIED, f"Cannot use {kind} action {found.name} {where} of {table.name}")
    return Call(found.name, _arguments(found, action.action.params))


def _arguments(action: Action, params: Sequence[p4r.Action.Param]) -> tuple[int, ...]:
    given = {param.param_id: param.value for param in params}
    if len(params) != len(action.params) or len(given) != len(params):
        raise invalid(f"Unexpected number of action parameters: {action.name} has {len(action.params)}")
    if given.keys() != {item.id for item in action.params}:
        raise invalid(f"Unknown action parameter of {action.name}")
    return tuple(decode(given[item.id], item.bits, f"{item.name} of {action.name}") for item in action.params)


def write_action(action: Action, arguments: Sequence[int]) -> p4r.TableAction:
    """Return the action with its arguments as a message, numbers in canonical form."""
    result = p4r.TableAction()
    result.action.action_id = action.id
    for item, value in zip(action.params, arguments, strict=True):
        result.action.params.add(param_id=item.id, value=encode(value))
    return result
