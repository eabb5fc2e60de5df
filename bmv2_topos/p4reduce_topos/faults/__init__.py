# SPDX-License-Identifier: Apache-2.0
"""Fault injection: faults that are caused on purpose while ranks reduce, and how each rank must end."""
