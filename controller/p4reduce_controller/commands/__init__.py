# SPDX-License-Identifier: Apache-2.0
"""The command line of who runs a controller or asks one."""
