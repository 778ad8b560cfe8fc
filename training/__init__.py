# SPDX-License-Identifier: Apache-2.0
"""Training of the tiny model that the package ships; not installed with it."""
