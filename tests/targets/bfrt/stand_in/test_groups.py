# SPDX-License-Identifier: Apache-2.0
"""The tests' BF Runtime server answers as the SDE's sources say: multicast groups and their nodes.

Each test names the function of `bf-drivers/src` where a reader would not find it at once.
"""

from __future__ import annotations

import pytest

from tests.support.bfrt import bfruntime_pb2 as bfrt
from tests.support.bfrt.plain_client import PlainClient
from tests.support.bfrt.server import Server

pytestmark = pytest.mark.p4c


def node(client: PlainClient, number: int, instance: int, *ports: int) -> bfrt.TableEntry:
    data = {"$MULTICAST_RID": instance, "$MULTICAST_LAG_ID": [], "$DEV_PORT": ports}
    return client.entry("$pre.node", {"$MULTICAST_NODE_ID": number}, data)


def group(client: PlainClient, number: int, *nodes: int) -> bfrt.TableEntry:
    data = {
        "$MULTICAST_NODE_ID": nodes,
        "$MULTICAST_NODE_L1_XID_VALID": [False] * len(nodes),
        "$MULTICAST_NODE_L1_XID": [0] * len(nodes),
    }
    return client.entry("$pre.mgid", {"$MGID": number}, data)


def test_groups(server: Server, client: PlainClient) -> None:
    groups = server.device.plane._groups  # type: ignore[attr-defined]
    assert client.write(
        ("INSERT", node(client, 1, 10, 4, 0)),
        ("INSERT", node(client, 2, 20, 8)),
        ("INSERT", group(client, 5, 1, 2)),
    ) == ["", "", ""]
    assert groups == {5: ((0, 10), (4, 10), (8, 20))}
    assert client.write(("MODIFY", node(client, 2, 99, 12))) == [""]  # the instance stays
    assert groups == {5: ((0, 10), (4, 10), (12, 20))}
    (entry,) = client.read(client.entry("$pre.node", {"$MULTICAST_NODE_ID": 2}))
    assert client.values(entry) == {"$MULTICAST_RID": 20, "$MULTICAST_LAG_ID": [], "$DEV_PORT": [12]}
    assert client.write(("MODIFY", group(client, 5, 2))) == [""]
    (entry,) = client.read(client.entry("$pre.mgid"))
    assert client.values(entry)["$MULTICAST_NODE_ID"] == [2]
    assert client.write(("DELETE", client.entry("$pre.mgid", {"$MGID": 5}))) == [""]
    assert groups == {}
    assert len(client.read(client.entry("$pre.node"))) == 2


def test_a_node_has_no_ports_that_no_chip_has(server: Server, client: PlainClient) -> None:
    """A node's ports are bits of a map, which has none for 72 to 127 of a pipe."""
    assert client.write(("INSERT", node(client, 2, 10, 4, 72, 400, 600)), ("INSERT", node(client, 1, 10, 511))) == [
        "",
        "",
    ]
    first, second = client.read(client.entry("$pre.node"))
    assert (client.values(first)["$DEV_PORT"], client.values(second)["$DEV_PORT"]) == ([], [4, 400])
    assert server.device.remarks[0] == "$pre.node: a node with ports that no chip has: [72, 600]"


def test_groups_are_changed_node_by_node(server: Server, client: PlainClient) -> None:
    """An unknown group is ALREADY_EXISTS, and what was done before an error stays (`tableEntryModInc`)."""
    groups = server.device.plane._groups  # type: ignore[attr-defined]
    client.write(*[("INSERT", node(client, number, 10 * number, 4)) for number in (1, 2, 3)])
    client.write(("INSERT", group(client, 5, 1)))
    assert client.write(("MODIFY_INC", group(client, 5, 2, 3))) == [""]
    assert groups == {5: ((4, 10), (4, 20), (4, 30))}
    remove = group(client, 5, 2)
    remove.table_flags.mod_del = True
    change = "Table Entry modify incremental failed table:$pre.mgid"
    assert client.write(("MODIFY_INC", remove), ("MODIFY_INC", remove)) == [
        "",
        f"ALREADY_EXISTS {change} Already exists",
    ]
    assert groups == {5: ((4, 10), (4, 30))}
    assert client.write(
        ("MODIFY_INC", group(client, 6)),
        ("MODIFY_INC", group(client, 5, 2, 99)),
        ("MODIFY_INC", group(client, 5, 1)),
        ("MODIFY_INC", node(client, 1, 10)),
    ) == [
        f"ALREADY_EXISTS {change} Already exists",
        f"NOT_FOUND {change} Object not found",
        f"ALREADY_EXISTS {change} Already exists",
        "UNIMPLEMENTED Table Entry modify incremental failed table:$pre.node Operation not supported",
    ]
    assert groups == {5: ((4, 10), (4, 30), (4, 20))}


def test_groups_that_are_refused(server: Server, client: PlainClient) -> None:
    """A node is in one group only (`mc_mgr_l1_associate`), and the lists have one length."""
    client.write(("INSERT", node(client, 1, 10, 4)), ("INSERT", group(client, 5, 1)))
    uneven = group(client, 6)
    uneven.data.fields[0].int_arr_val.val.append(1)
    add, change = "Table Add failed table:$pre.mgid", "Table Entry modify failed table:$pre.mgid"
    assert client.write(
        ("INSERT", group(client, 6, 1)),
        ("INSERT", group(client, 6, 99)),
        ("INSERT", group(client, 5)),
        ("INSERT", uneven),
        ("MODIFY", group(client, 5, 99)),
        ("MODIFY", group(client, 6)),
        ("INSERT", node(client, 1, 11)),
        ("DELETE", client.entry("$pre.node", {"$MULTICAST_NODE_ID": 2})),
        ("DELETE", client.entry("$pre.node")),
        ("DELETE", client.entry("$pre.mgid")),
    ) == [
        f"ALREADY_EXISTS {add} Already exists",
        f"NOT_FOUND {add} Object not found",
        f"ALREADY_EXISTS {add} Already exists",
        f"INVALID_ARGUMENT {add} Invalid arguments",
        f"NOT_FOUND {change} Object not found",
        f"NOT_FOUND {change} Object not found",
        "ALREADY_EXISTS Table Add failed table:$pre.node Already exists",
        "NOT_FOUND Table Entry delete failed table:$pre.node Object not found",
        "UNIMPLEMENTED Table Entry delete all failed table:$pre.node Operation not supported",
        "UNIMPLEMENTED Table Entry delete all failed table:$pre.mgid Operation not supported",
    ]
    assert server.device.plane._groups == {5: ((4, 10),)}  # type: ignore[attr-defined]


def test_deletion_of_a_node_in_a_group(server: Server, client: PlainClient) -> None:
    """The node leaves its group, and nobody is told (`bf_mc_node_destroy`)."""
    client.write(("INSERT", node(client, 1, 10, 4)), ("INSERT", group(client, 5, 1)))
    assert client.write(("DELETE", client.entry("$pre.node", {"$MULTICAST_NODE_ID": 1}))) == [""]
    assert client.values(client.read(client.entry("$pre.mgid", {"$MGID": 5}))[0])["$MULTICAST_NODE_ID"] == []
    assert server.device.remarks == ["$pre.node: node 1 is deleted, which group 5 has"]
