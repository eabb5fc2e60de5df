# SPDX-License-Identifier: Apache-2.0
"""Emulation of a topology in Mininet on this machine."""
