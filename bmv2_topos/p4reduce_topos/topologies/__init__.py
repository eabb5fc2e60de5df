# SPDX-License-Identifier: Apache-2.0
"""Functions that build topologies, and the catalogue of these functions. They do not depend on the emulation."""
