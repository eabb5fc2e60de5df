# SPDX-License-Identifier: Apache-2.0
"""A forwarding pipeline: a loaded program with all entities that were written to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from finsy.proto import p4r
from grpc import StatusCode

from p4reduce_targets.dataplane import DataPlane
from p4reduce_targets.p4runtime.counters import Counters
from p4reduce_targets.p4runtime.errors import Refused, UpdatesRefused, invalid, message_of, unsupported
from p4reduce_targets.p4runtime.meters import Meters
from p4reduce_targets.p4runtime.multicast import Multicast
from p4reduce_targets.p4runtime.packets import PacketHeader
from p4reduce_targets.p4runtime.program import Program
from p4reduce_targets.p4runtime.readback import Undo
from p4reduce_targets.p4runtime.tables import Tables

_UNSUPPORTED = {
    "extern_entry": "Externs",
    "action_profile_member": "Action profiles",
    "action_profile_group": "Action profiles",
    "direct_meter_entry": "Direct meters",
    "value_set_entry": "Value sets",
    "register_entry": "Registers",
    "digest_entry": "Digests",
}


class Pipeline:
    """A pipeline. Not thread safe: the caller is in the device's `exclusive()`."""

    def __init__(self, config: p4r.ForwardingPipelineConfig, program: Program, data_plane: DataPlane) -> None:
        self.config = config
        self.data_plane = data_plane
        self.packet_in = PacketHeader(program.packet_in)
        self.packet_out = PacketHeader(program.packet_out)
        self._tables = Tables(program, data_plane)
        self._counters = Counters(program, data_plane)
        self._meters = Meters(program, data_plane)
        self._multicast = Multicast(data_plane)

    def write(self, updates: Iterable[p4r.Update]) -> None:
        """Do all updates in order, and continue after refused ones; raise UpdatesRefused if there were any."""
        errors = [error for batch in _batches(updates) for error in self._write_batch(batch)]
        if any(errors):
            raise UpdatesRefused(errors)

    def _write_batch(self, updates: Sequence[p4r.Update]) -> list[Refused | None]:
        errors: list[Refused | None] = []
        undo: dict[int, Undo] = {}
        with self.data_plane.batch() as batch:
            for number, update in enumerate(updates):
                batch.label = number
                try:
                    undo[number] = self._write(update)
                except Refused as error:
                    errors.append(error)
                except (KeyError, ValueError) as error:  # the data plane knows more than P4Info: sizes, constant tables
                    errors.append(_from_target(error))
                else:
                    errors.append(None)
        for number, late in batch.errors.items():
            errors[number] = _from_target(late)
            if number in undo:
                undo[number]()
        return errors

    def _write(self, update: p4r.Update) -> Undo:
        entity = update.entity
        match kind := entity.WhichOneof("entity"):
            case "table_entry":
                _check_type(update)
                return self._tables.write(update.type, entity.table_entry)
            case "counter_entry":
                _check_type(update)
                return self._counters.write(update.type, entity.counter_entry)
            case "meter_entry":
                _check_type(update)
                return self._meters.write(update.type, entity.meter_entry)
            case "direct_counter_entry":
                _check_type(update)
                return self._tables.write_direct_counter(update.type, entity.direct_counter_entry)
            case "packet_replication_engine_entry":
                _check_type(update)
                return self._multicast.write(update.type, entity.packet_replication_engine_entry)
            case _:
                raise _refusal(kind, "writes")

    def read(self, entities: Iterable[p4r.Entity]) -> Iterator[p4r.Entity]:
        """Yield all matching entities; raise Refused at the first that cannot be read."""
        for entity in entities:
            match kind := entity.WhichOneof("entity"):
                case "table_entry":
                    for entry in self._tables.read(entity.table_entry):
                        yield p4r.Entity(table_entry=entry)
                case "counter_entry":
                    for counter in self._counters.read(entity.counter_entry):
                        yield p4r.Entity(counter_entry=counter)
                case "meter_entry":
                    for meter in self._meters.read(entity.meter_entry):
                        yield p4r.Entity(meter_entry=meter)
                case "direct_counter_entry":
                    for direct in self._tables.read_direct_counters(entity.direct_counter_entry):
                        yield p4r.Entity(direct_counter_entry=direct)
                case "packet_replication_engine_entry":
                    for group in self._multicast.read(entity.packet_replication_engine_entry):
                        yield p4r.Entity(packet_replication_engine_entry=group)
                case _:
                    if not _asks_for_all(entity):
                        raise _refusal(kind, "reads")

    def replay(self, other: Pipeline) -> None:
        """Copy all entities of `other`; raise Refused if this program cannot have one of them."""
        self._tables.replay(other._tables)
        self._counters.replay(other._counters)
        self._meters.replay(other._meters)
        self._multicast.replay(other._multicast)


def _asks_for_all(entity: p4r.Entity) -> bool:
    """Whether this reads all entities of a kind that programs here lack. BMv2 then returns none."""
    match entity.WhichOneof("entity"):
        case "action_profile_member":
            return not entity.action_profile_member.action_profile_id
        case "action_profile_group":
            return not entity.action_profile_group.action_profile_id
    return False


def _batches(updates: Iterable[p4r.Update]) -> Iterator[list[p4r.Update]]:
    """Split updates so that no batch writes an entity twice.

    How the second update of an entity ends depends on the first, which a data plane may refuse when the batch ends.
    """
    batch: list[p4r.Update] = []
    written: set[object] = set()
    for update in updates:
        identity = _identity(update.entity)
        if identity in written:
            yield batch
            batch, written = [], set()
        batch.append(update)
        written.add(identity)
    yield batch


def _identity(entity: p4r.Entity) -> object:
    """Return what makes an entity the same as another. An entry and its direct counter are one."""
    match entity.WhichOneof("entity"):
        case "table_entry":
            entry = entity.table_entry
        case "direct_counter_entry":
            entry = entity.direct_counter_entry.table_entry
        case "counter_entry":
            return "counter", entity.counter_entry.counter_id, entity.counter_entry.index.index
        case "meter_entry":
            return "meter", entity.meter_entry.meter_id, entity.meter_entry.index.index
        case _:
            return entity.packet_replication_engine_entry.multicast_group_entry.multicast_group_id
    return entry.table_id, entry.priority, entry.is_default_action, frozenset(map(_matched, entry.match))


def _matched(field: p4r.FieldMatch) -> object:
    """Return what a field matches. Numbers with and without leading zeros are the same."""
    numbers = field.exact.value, field.lpm.value, field.ternary.value, field.ternary.mask
    return field.field_id, field.lpm.prefix_len, *(number.lstrip(b"\0") for number in numbers)


def _check_type(update: p4r.Update) -> None:
    if update.type not in (p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE):
        raise invalid("Update type is not set")


def _from_target(error: Exception) -> Refused:
    return Refused(StatusCode.UNKNOWN, f"Error from target: {message_of(error)}")


def _refusal(kind: str | None, doing: str) -> Refused:
    if kind is None:
        return Refused(StatusCode.UNKNOWN, "Incorrect entity type")
    return unsupported(f"{_UNSUPPORTED[kind]} are not supported: no {doing}")
