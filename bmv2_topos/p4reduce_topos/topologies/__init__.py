# SPDX-License-Identifier: Apache-2.0
"""Topologies: functions that make them, and the catalogue of these. What runs a topology is unknown here."""
