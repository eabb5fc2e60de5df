# SPDX-License-Identifier: Apache-2.0
"""The collectives, each as a plan: what a rank stages, what is added over the ranks, and what it makes of the sums."""
