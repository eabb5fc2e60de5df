# SPDX-License-Identifier: Apache-2.0
"""`p4reduce bench train`: trainings of small models with p4reduce's hooks and with other systems."""
