# SPDX-License-Identifier: Apache-2.0
"""`p4reduce demo`: real training whose gradients are summed by the P4 program, and what happened on the way."""
