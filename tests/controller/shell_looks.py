# SPDX-License-Identifier: Apache-2.0
"""Program that reads a switch's entries by p4runtime-shell, for test_election.py.

Run as: python shell_looks.py ADDRESS, in an environment of its own that has p4runtime-shell. For every line that
comes in, it prints how many entries the table of jobs has.
"""

import os
import sys
import traceback

import p4runtime_sh.shell as sh


def look(address: str) -> None:
    sh.setup(device_id=1, grpc_addr=address, verbose=False)  # with the election id that it has by itself
    print("set up", flush=True)
    for _ in sys.stdin:
        print(len(list(sh.TableEntry("jobs").read())), flush=True)
    sh.teardown()


if __name__ == "__main__":
    try:
        look(*sys.argv[1:])
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # the shell's threads would keep it alive
