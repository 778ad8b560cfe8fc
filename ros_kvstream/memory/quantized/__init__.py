# SPDX-License-Identifier: Apache-2.0
"""Mixed precision: keys and values in native dtype, 8 bits and 4 bits."""
