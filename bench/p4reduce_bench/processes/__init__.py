# SPDX-License-Identifier: Apache-2.0
"""The means of all commands: child processes, switches, private networks, and the end of a command."""
