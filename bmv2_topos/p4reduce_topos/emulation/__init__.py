# SPDX-License-Identifier: Apache-2.0
"""A topology at work on this machine, in Mininet."""
