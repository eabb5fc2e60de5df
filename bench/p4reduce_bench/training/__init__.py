# SPDX-License-Identifier: Apache-2.0
"""`p4reduce bench train`: small models trained with our hooks beside other ways to add up their gradients."""
