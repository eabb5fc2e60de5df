# SPDX-License-Identifier: Apache-2.0
"""`p4reduce demo`: a real training whose gradients the P4 program adds up, and a report of it."""
