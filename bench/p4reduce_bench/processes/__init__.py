# SPDX-License-Identifier: Apache-2.0
"""What experiments are made of: child processes, switches, private networks, and how commands end."""
