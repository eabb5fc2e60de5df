# SPDX-License-Identifier: Apache-2.0
"""The entry point of `python -m p4reduce_topos`, which does the same as `p4reduce topo`."""

import sys

from p4reduce.commands.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "topo")
    main()
