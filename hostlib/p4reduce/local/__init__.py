# SPDX-License-Identifier: Apache-2.0
"""Ranks of one host, which reduce in memory that they share."""
