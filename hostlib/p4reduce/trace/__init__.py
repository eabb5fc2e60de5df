# SPDX-License-Identifier: Apache-2.0
"""Traces: a job's rounds, reconstructed from captured packets, to view in a page, in Perfetto or as JSON."""
