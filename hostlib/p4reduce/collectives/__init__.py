# SPDX-License-Identifier: Apache-2.0
"""The collectives, each as a plan: the tensor that a rank stages, the sum over the ranks, and the use of the result."""
