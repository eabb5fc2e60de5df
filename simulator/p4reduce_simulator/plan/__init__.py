# SPDX-License-Identifier: Apache-2.0
"""The command `p4reduce plan`: expectations of p4reduce before there is a cluster (docs/planning.md)."""
