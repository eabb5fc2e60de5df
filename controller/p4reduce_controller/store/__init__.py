# SPDX-License-Identifier: Apache-2.0
"""The jobs that run, as kept for a later controller, and the file for them. Uses `jobs` and what it uses."""
