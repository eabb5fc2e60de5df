# SPDX-License-Identifier: Apache-2.0
"""Tables of the C code, whose keys have up to four words: every bit of every field counts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p4reduce_targets.dataplane import Call, Count, Exact, Key
from p4reduce_targets.native import NativeDataPlane, load
from p4reduce_targets.native.program import Field, Table, implemented
from tests.support.dataplane.switch import JOBS, OWN_ADDRESSES, UPLINKS, WORKERS

from .udp_switch import CONFIG

ADMIT = Call("SwitchIngress.aggregation.admission.admit", (1, 1, 0, 2, 3))
TABLE = implemented().tables[JOBS]

ENDS = list(accumulate(field.bits for field in TABLE.fields))
BITS = sorted({0, 64, ENDS[-1] - 1, *ENDS[:-1], *(end - 1 for end in ENDS)})


def key_of(number: int) -> Key:
    """Return the key whose fields, one after the other, are the bits of a number."""
    values = []
    for field in TABLE.fields:
        values.append(Exact(number & (1 << field.bits) - 1))
        number >>= field.bits
    return tuple(values)


bits = st.sampled_from(BITS)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["insert", "delete", "count"]), bits, bits), max_size=80))
def test_keys_that_differ_in_a_bit(steps: list[tuple[str, int, int]]) -> None:
    """Each key has one or two bits, the first or last of fields or words, so that many differ in one place alone."""
    plane = load(CONFIG)
    there: dict[Key, Count] = {}
    for number, (kind, one, other) in enumerate(steps):
        key = key_of(1 << one | 1 << other)
        if kind == "insert":
            fails = (ValueError, "has an entry") if key in there else None
            attempt(lambda key=key: plane.insert(JOBS, key, 0, ADMIT), fails)
            there.setdefault(key, Count(0, 0))
        elif kind == "delete":
            attempt(lambda key=key: plane.delete(JOBS, key, 0), None if key in there else (KeyError, "no entry"))
            there.pop(key, None)
        else:
            count = Count(number, 1)
            fails = None if key in there else (KeyError, "no entry")
            attempt(lambda key=key, count=count: plane.write_direct_counter(JOBS, key, 0, count), fails)
            if key in there:
                there[key] = count
        assert plane.read_direct_counters([(JOBS, key, 0) for key in there]) == list(there.values())


def attempt(call: Callable[[], None], fails: tuple[type[Exception], str] | None) -> None:
    if fails is None:
        call()
    else:
        with pytest.raises(fails[0], match=fails[1]):
            call()


@pytest.mark.parametrize("name", implemented().tables)
def test_fields_have_bits_of_their_own(name: str) -> None:
    table: Table = implemented().tables[name]
    taken: set[int] = {64 * 1 + bit for bit in range(8)} if table.match == "lpm" else set()
    for field in table.fields:
        places = set(places_of(field))
        assert len(places) == field.bits
        assert not places & taken, field
        taken |= places
    assert max(taken) < 64 * 4


def places_of(field: Field) -> list[int]:
    """Return the bits of a key that a field takes."""
    if field.bits == 128:
        assert field.shift == 0
    else:
        assert field.shift + field.bits <= 64
    return [64 * field.word + field.shift + bit for bit in range(field.bits)]


@pytest.mark.parametrize("number", [1 << 128, -1])
def test_a_number_that_is_no_address(number: int) -> None:
    plane: NativeDataPlane = load(CONFIG)
    own = Call("SwitchIngress.own_address.own", (1,))
    with pytest.raises(ValueError, match="does not fit within 128 bits"):
        plane.insert(OWN_ADDRESSES, (Exact(number),), 0, own)
    with pytest.raises(ValueError, match=r"ip: .* does not fit within 128 bits"):
        plane.insert(WORKERS, (Exact(1), Exact(1)), 0, Call("SwitchEgress.delivery.address", (1, number, 2)))
    call = Call("SwitchIngress.aggregation.uplink.uplink", (1, 2, number, 3, 4))
    with pytest.raises(ValueError, match=r"ip: .* does not fit within 128 bits"):
        plane.insert(UPLINKS, (Exact(1),), 0, call)
