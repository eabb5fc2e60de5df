# SPDX-License-Identifier: Apache-2.0
"""Clocks, tasks, limits, gRPC servers and how a setting is declared. Imports nothing else of the controller."""
