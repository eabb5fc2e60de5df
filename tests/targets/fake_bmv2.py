# SPDX-License-Identifier: Apache-2.0
"""simple_switch_grpc as far as its command line goes, and then `sim`: fake_bmv2.py FILE KNOWN,... ARGUMENT...

KNOWN are the options that depend on how it was built. What it is started with goes to FILE, as JSON.
"""

import json
import os
import sys

ALWAYS = ("device-id", "log-level", "no-p4")

file, built_with, *arguments = sys.argv[1:]
known = {*ALWAYS, *filter(None, built_with.split(","))}
# The help is worded as BMv2's: descriptions name other options, also those that this build does not know.
usage = "".join(
    f"  {'-L [ --log-level ]' if name == 'log-level' else f'--{name}'} arg\n{' ' * 24}Not to be confused with\n"
    f"{' ' * 24}--notifications-addr and\n{' ' * 24}--thrift-port\n"
    for name in sorted(known)
)
if arguments == ["--help"]:
    print(f"Usage: SWITCH_NAME [options] <path to JSON config file>\nOptions:\n{usage}")
    sys.exit(0)
general, target = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
if {part[2:] for part in general if part.startswith("--")} - known:
    print(f"Error while parsing command line arguments\n{usage}")
    sys.exit(1)
with open(file, "w") as out:
    json.dump(general, out)
switch = ["--target", "sim", "--grpc", target[target.index("--grpc-server-addr") + 1], "--port", "1=udp:127.0.0.1:0"]
os.execv(sys.executable, [sys.executable, "-m", "p4reduce_targets", *switch])
