# SPDX-License-Identifier: Apache-2.0
"""Published sparse allreduces, as their papers describe them, on torch.distributed's Gloo send and receive.

What is added up in the network is a mode of our own stack instead (`streaming`). The others are given places and values
of elements, made before the clock starts. Each module says what of the published system is here and what is not.
"""
