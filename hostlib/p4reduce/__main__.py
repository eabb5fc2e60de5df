# SPDX-License-Identifier: Apache-2.0
"""`python -m p4reduce` is the command line."""

from p4reduce.commands.entry import main

main()
