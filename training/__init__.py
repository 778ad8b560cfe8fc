# SPDX-License-Identifier: Apache-2.0
"""Training of the tiny model and the tiny external encoder that the package ships; not installed."""
