# SPDX-License-Identifier: Apache-2.0
"""The entry point of `python -m p4reduce`, which is the command line."""

from p4reduce.commands.entry import main

main()
