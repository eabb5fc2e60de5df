# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: each a module to run, with --help and --json."""
