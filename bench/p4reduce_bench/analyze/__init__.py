# SPDX-License-Identifier: Apache-2.0
"""How sparse gradients are, and what that is worth: `p4reduce analyze`, and the measures for other callers."""
