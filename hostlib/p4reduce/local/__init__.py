# SPDX-License-Identifier: Apache-2.0
"""Reductions among ranks of one host, in shared memory."""
