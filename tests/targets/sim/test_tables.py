# SPDX-License-Identifier: Apache-2.0
"""Matching, default actions, counters and what the control plane may not do."""

from __future__ import annotations

import pytest

from p4reduce_targets.dataplane import Call, Count, Exact, Key, Lpm, Ternary
from p4reduce_targets.sim import Switch

from .programs import Builder, argument, assign, extract, field, number

HEADER = {"a": 8, "b": 32, "out": 8}


def table(key: dict[str, str], **options: object) -> Builder:
    """Return a program with a table `t`, whose action `set` writes its argument to h.out. A miss writes 0xEE."""
    builder = Builder({"h": HEADER})
    actions = [
        builder.action("set", assign("h.out", argument(0)), value=8),
        builder.action("keep"),
        builder.action("miss", assign("h.out", number(0xEE))),
    ]
    return builder.table("t", key, actions, default=actions[2], **options)  # type: ignore[arg-type]


def out(switch: Switch, a: int = 0, b: int = 0) -> int:
    """Return h.out after the table."""
    frame = bytes([a]) + b.to_bytes(4, "big") + b"\x55"
    ((_, sent),) = switch.process(3, frame)
    assert sent[:5] == frame[:5]
    return int(sent[5])


def put(value: int) -> Call:
    return Call("set", (value,))


def test_exact_of_one_and_of_several_fields() -> None:
    one, two = table({"h.a": "exact"}).load(), table({"h.a": "exact", "h.b": "exact"}).load()
    one.insert("t", (Exact(1),), 0, put(7))
    two.insert("t", (Exact(1), Exact(2)), 0, put(8))
    assert [out(one, 1), out(one, 2)] == [7, 0xEE]
    assert [out(two, 1, 2), out(two, 1, 3), out(two, 2, 2)] == [8, 0xEE, 0xEE]


def test_longest_prefix_wins() -> None:
    switch = table({"h.a": "exact", "h.b": "lpm"}).load()
    for length, value in ((8, 1), (24, 2), (0, 3), (32, 4)):
        switch.insert("t", (Exact(1), Lpm(0x0A0B0C0D, length)), 0, put(value))
    addresses = [0x0A0B0C0D, 0x0A0B0CFF, 0x0AFFFFFF, 0xFFFFFFFF]
    assert [out(switch, 1, address) for address in addresses] == [4, 2, 1, 3]
    assert out(switch, 2, 0x0A0B0C0D) == 0xEE
    switch.delete("t", (Exact(1), Lpm(0x0A0B0C00, 24)), 0)
    assert out(switch, 1, 0x0A0B0CFF) == 1


def test_highest_priority_wins() -> None:
    switch = table({"h.a": "ternary", "h.b": "lpm"}).load()
    switch.insert("t", (Ternary(0x10, 0xF0), Lpm(0, 0)), 5, put(1))
    switch.insert("t", (Ternary(0x12, 0xFF), Lpm(0, 0)), 4, put(2))
    switch.insert("t", (Ternary(0, 0), Lpm(0x0A000000, 8)), 9, put(3))
    assert [out(switch, 0x12), out(switch, 0x22), out(switch, 0x12, 0x0A000001)] == [1, 0xEE, 3]
    switch.delete("t", (Ternary(0x1F, 0xF0), Lpm(0, 0)), 5)
    assert out(switch, 0x12) == 2


def test_modify_and_defaults() -> None:
    switch = table({"h.a": "exact"}).load()
    switch.insert("t", (Exact(1),), 0, put(7))
    switch.modify("t", (Exact(1),), 0, Call("keep"))
    assert out(switch, 1) == 0x55
    switch.set_default("t", put(0x33))
    assert out(switch, 2) == 0x33
    switch.set_default("t", None)
    assert out(switch, 2) == 0xEE


def only_set(key: dict[str, str], *data: int, const: bool = False) -> Switch:
    """Return a switch whose table has `set` as its one action. It is the default, too, if it has an argument."""
    builder = Builder({"h": HEADER})
    action = builder.action("set", assign("h.out", argument(0)), value=8)
    return builder.table("t", key, [action], default=action if data else None, data=data, const=const).load()


def test_defaults_have_arguments() -> None:
    assert out(only_set({"h.a": "exact"}, 0x42), 1) == 0x42
    assert out(only_set({}, 9, const=True)) == 9


def test_table_without_keys_has_only_its_default() -> None:
    switch = only_set({})
    assert out(switch) == 0x55
    switch.set_default("t", put(1))
    assert out(switch) == 1


def test_constant_entries() -> None:
    entries = [
        {
            "match_key": [{"match_type": "ternary", "key": "0x10", "mask": "0xf0"}],
            "action_entry": {"action_id": 1, "action_data": [hex(priority)]},
            "priority": priority,
        }
        for priority in (2, 1)
    ]
    switch = table({"h.a": "ternary"}, entries=entries).load()
    assert [out(switch, 0x13), out(switch, 0x23)] == [1, 0xEE]  # the smaller number comes first in the JSON
    with pytest.raises(ValueError, match="constant"):
        switch.insert("t", (Ternary(0, 0),), 1, put(1))


@pytest.mark.parametrize("kind", ["hit", "action"])
def test_branches_on_the_result(kind: str) -> None:
    builder = table({"h.a": "exact"})
    found, lost = builder.action("found", assign("h.b", number(1))), builder.action("lost", assign("h.b", number(2)))
    builder.nodes["ingress"][-1]["next_tables"] = (
        {"__HIT__": "yes", "__MISS__": "no"} if kind == "hit" else {"set": "yes", "keep": "no", "miss": "no"}
    )
    builder.table("yes", {}, [found], default=found, const=True, next_tables={"found": None})
    builder.table("no", {}, [lost], default=lost, const=True, next_tables={"lost": None})
    switch = builder.load()
    switch.insert("t", (Exact(1),), 0, put(7))
    assert switch.process(1, bytes([1, 0, 0, 0, 0, 0])) == [(1, bytes([1, 0, 0, 0, 1, 7]))]
    assert switch.process(1, bytes([2, 0, 0, 0, 0, 0])) == [(1, bytes([2, 0, 0, 0, 2, 0xEE]))]
    if kind == "action":
        switch.insert("t", (Exact(3),), 0, Call("keep"))
        assert switch.process(1, bytes([3, 0, 0, 0, 0, 0])) == [(1, bytes([3, 0, 0, 0, 2, 0]))]


def test_invalid_header_matches_as_zero() -> None:
    builder = Builder({"kind": {"v": 8}, "h": HEADER})
    builder.state("start", [extract("kind")], [field("kind.v")], v01="more", default=None)
    builder.state("more", [extract("h")], default=None)
    set_kind = builder.action("set", assign("kind.v", argument(0)), value=8)
    builder.run(assign("h.a", number(5)))
    switch = builder.table("t", {"h.a": "exact", "h.$valid$": "exact"}, [set_kind]).load()
    switch.insert("t", (Exact(0), Exact(0)), 0, put(0x77))
    switch.insert("t", (Exact(5), Exact(1)), 0, put(0x99))
    assert switch.process(1, b"\x02") == [(1, b"\x77")]
    assert switch.process(1, b"\x01" + bytes(6)) == [(1, b"\x99\x05" + bytes(5))]


def test_key_mask_of_the_program() -> None:
    builder = table({"h.a": "exact"})
    builder.nodes["ingress"][-1]["key"][0]["mask"] = "0x0f"
    switch = builder.load()
    switch.insert("t", (Exact(3),), 0, put(7))
    assert [out(switch, 0xF3), out(switch, 0x34)] == [7, 0xEE]


def test_direct_counters() -> None:
    switch = table({"h.a": "exact"}, counts=True).load()
    key: Key = (Exact(1),)
    switch.insert("t", key, 0, put(7))
    for a in (1, 2, 1):
        out(switch, a)
    assert switch.read_direct_counters([("t", key, 0)]) == [Count(2, 12)]
    switch.modify("t", key, 0, put(8))
    switch.write_direct_counter("t", key, 0, Count(10, 100))
    out(switch, 1)
    assert switch.read_direct_counters([("t", key, 0)]) == [Count(11, 106)]
    with pytest.raises(KeyError):
        switch.read_direct_counters([("t", (Exact(2),), 0)])
    plain = table({"h.a": "exact"}).load()
    plain.insert("t", key, 0, put(7))
    with pytest.raises(ValueError, match="no direct counter"):
        plain.read_direct_counters([("t", key, 0)])


def test_nonsense_from_the_control_plane() -> None:
    switch = table({"h.a": "exact"}, size=2).load()
    switch.insert("t", (Exact(1),), 0, put(7))
    with pytest.raises(KeyError):
        switch.insert("u", (Exact(1),), 0, put(7))
    with pytest.raises(KeyError, match="no action"):
        switch.insert("t", (Exact(2),), 0, Call("other"))
    for call in (Call("set"), Call("set", (1, 2)), Call("set", (256,)), Call("set", (-1,))):
        with pytest.raises(ValueError, match="set"):
            switch.insert("t", (Exact(2),), 0, call)
    for key, priority in (((), 0), ((Exact(256),), 0), ((Lpm(1, 8),), 0), ((Exact(2),), 1)):
        with pytest.raises(ValueError, match="table t"):
            switch.insert("t", key, priority, put(7))
    with pytest.raises(ValueError, match="already"):
        switch.insert("t", (Exact(1),), 0, put(7))
    for change in (switch.modify, lambda *key: switch.delete(*key[:3])):
        with pytest.raises(KeyError, match="no entry"):
            change("t", (Exact(3),), 0, put(7))
    switch.insert("t", (Exact(2),), 0, put(7))
    with pytest.raises(ValueError, match="full"):
        switch.insert("t", (Exact(3),), 0, put(7))
    constant = table({"h.a": "exact"}, const=True).load()
    with pytest.raises(ValueError, match="constant"):
        constant.set_default("t", put(7))
    lpm = table({"h.b": "lpm"}).load()
    with pytest.raises(ValueError, match="prefix length 33"):
        lpm.insert("t", (Lpm(0, 33),), 0, put(7))
