# SPDX-License-Identifier: Apache-2.0
"""Session of p4runtime-shell that test_p4runtime_shell.py runs, in an environment of its own.

Run as: python shell_session.py ADDRESS P4INFO CONFIG
"""

import os
import sys
import time
import traceback
from collections.abc import Callable

import p4runtime_sh.shell as sh
from p4runtime_sh.p4runtime import P4RuntimeWriteException

CPU_PORT = 510


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except P4RuntimeWriteException as error:
        return str(error)
    raise AssertionError(f"{call} was not refused")


def session(address: str, p4info: str, config: str) -> None:
    sh.setup(device_id=1, grpc_addr=address, election_id=(0, 3), config=sh.FwdPipeConfig(p4info, config), verbose=False)

    entry = sh.TableEntry("exact_table")(action="forward")
    entry.match["dst"] = "00:00:00:00:00:01"
    entry.action["port"] = "3"
    entry.insert()
    entry.action["port"] = "4"
    entry.modify()
    found = list(sh.TableEntry("exact_table").read())
    assert len(found) == 1
    assert found[0].action["port"].value == b"\x04", found[0].action["port"].value
    assert "ALREADY_EXISTS" in refusal(entry.insert)
    entry.delete()
    assert not list(sh.TableEntry("exact_table").read())

    ternary = sh.TableEntry("ternary_table")(action="set_tag")
    ternary.match["src"] = "00:00:00:00:00:01&&&00:00:00:00:00:ff"
    ternary.match["type"] = "0x800"
    ternary.priority = 5
    ternary.action["tag"] = "1"
    ternary.action["other"] = "2"
    ternary.insert()
    lpm = sh.TableEntry("lpm_table")(action="set_tag")
    lpm.match["dst"] = "0a:00:00:00:00:00/8"
    lpm.action["tag"] = "1"
    lpm.action["other"] = "2"
    lpm.insert()
    assert len(list(sh.TableEntry("ternary_table").read())) == 1
    assert len(list(sh.TableEntry("lpm_table").read())) == 1

    default = sh.TableEntry("exact_table")(action="discard", is_default=True)
    default.modify()
    assert "discard" in str(next(iter(sh.TableEntry("exact_table")(is_default=True).read())))

    sh.TableEntry("exact_table")(is_default=True).modify()

    cell = sh.CounterEntry("cells")
    cell.index = 2
    cell.packet_count, cell.byte_count = 7, 70
    cell.modify()
    assert [(one.packet_count, one.byte_count) for one in cell.read()] == [(7, 70)]

    group = sh.MulticastGroupEntry(5)
    group.add(CPU_PORT, 1).add(CPU_PORT, 2)
    group.insert()
    assert [len(one.replicas) for one in sh.MulticastGroupEntry().read()] == [2]

    packet = sh.PacketOut(bytes(74), kind="1", egress_port="0", padding="0", group="5")
    came = sh.PacketIn()
    packet.send()
    deadline = time.monotonic() + 20
    frames = list(came.sniff(timeout=2))
    while len(frames) < 2 and time.monotonic() < deadline:  # on a busy machine they may take longer
        frames += came.sniff(timeout=2)
    assert [one.packet.payload for one in frames] == [bytes(74)] * 2, frames
    group.delete()
    sh.teardown()


if __name__ == "__main__":
    try:
        session(*sys.argv[1:])
        print("done", flush=True)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # the shell's threads would keep it alive
