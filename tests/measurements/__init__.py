# SPDX-License-Identifier: Apache-2.0
"""Measurements of single parts: each module is a command with --help and --json."""
