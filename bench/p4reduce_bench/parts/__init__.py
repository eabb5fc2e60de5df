# SPDX-License-Identifier: Apache-2.0
"""What the parts can do: each a module to run, with --help and --json."""
