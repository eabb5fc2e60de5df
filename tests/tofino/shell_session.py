# SPDX-License-Identifier: Apache-2.0
"""Session of p4runtime-shell that test_bfrt_clients.py runs, in an environment of its own.

Run as: python shell_session.py ADDRESS P4INFO CONFIG
"""

import os
import sys
import traceback
from collections.abc import Callable

import p4runtime_sh.shell as sh
from p4runtime_sh.p4runtime import P4RuntimeWriteException


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except P4RuntimeWriteException as error:
        return str(error)
    raise AssertionError(f"{call} was not refused")


def session(address: str, p4info: str, config: str) -> None:
    sh.setup(device_id=1, grpc_addr=address, election_id=(0, 3), config=sh.FwdPipeConfig(p4info, config), verbose=False)

    entry = sh.TableEntry("mac_addresses")(action="forward")
    entry.match["mac"] = "02:00:00:00:00:01"
    entry.action["port"] = "3"
    entry.insert()
    entry.action["port"] = "4"
    entry.modify()
    [found] = sh.TableEntry("mac_addresses").read()
    assert found.action["port"].value == b"\x04", found.action["port"].value
    assert "ALREADY_EXISTS" in refusal(entry.insert)
    entry.delete()
    assert not list(sh.TableEntry("mac_addresses").read())
    assert "NOT_FOUND" in refusal(entry.delete)

    route = sh.TableEntry("ipv4_routes")(action="route")
    route.match["destination"] = "10.1.0.0/16"
    route.action["port"] = "2"
    route.action["source_mac"] = "02:00:00:00:00:64"
    route.action["next_hop_mac"] = "02:00:00:00:00:02"
    route.insert()
    assert len(list(sh.TableEntry("ipv4_routes").read())) == 1

    worker = sh.TableEntry("jobs")(action="admit")
    for name, value in zip(("ingress_port", "source_port", "job", "generation", "worker"), "12345", strict=True):
        worker.match[name] = value
    worker.match["source_ip"] = "10.0.0.1"
    for name in ("worker_bit", "full_bitmap", "pool_base", "pool_halves", "group"):
        worker.action[name] = "1"
    worker.insert()
    [count] = sh.DirectCounterEntry("counted").read()
    assert (count.packet_count, count.byte_count) == (0, 0), count
    worker.delete()

    cell = sh.CounterEntry("outcomes")
    cell.index = 2
    cell.packet_count, cell.byte_count = 7, 70
    cell.modify()
    assert [(one.packet_count, one.byte_count) for one in cell.read()] == [(7, 70)]
    assert len(list(sh.CounterEntry("outcomes").read())) == 17

    group = sh.MulticastGroupEntry(5)
    group.add(3, 1).add(4, 2)
    group.insert()
    group.add(2, 2)
    group.modify()
    assert [len(one.replicas) for one in sh.MulticastGroupEntry().read()] == [3]

    default = sh.TableEntry("mac_addresses")(action="flood", is_default=True)
    default.action["group"] = "5"
    default.modify()
    assert "flood" in str(next(iter(sh.TableEntry("mac_addresses")(is_default=True).read())))
    sh.PacketOut(bytes(74), through_pipeline="0", padding="0", egress_port="1", multicast_group="0").send()
    print("flooding", flush=True)
    assert sys.stdin.readline(), "the test has failed"
    sh.TableEntry("mac_addresses")(is_default=True).modify()
    assert "discard" in str(next(iter(sh.TableEntry("mac_addresses")(is_default=True).read())))
    group.delete()
    assert not list(sh.MulticastGroupEntry().read())
    sh.teardown()


if __name__ == "__main__":
    try:
        session(*sys.argv[1:])
        print("done", flush=True)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # the shell's threads would keep it alive
