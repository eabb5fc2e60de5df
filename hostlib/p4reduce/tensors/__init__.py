# SPDX-License-Identifier: Apache-2.0
"""Tensors of NumPy and torch, dense and sparse, on hosts and GPUs, and their conversion to what the protocol adds."""
