# SPDX-License-Identifier: Apache-2.0
"""Commands of ``kvstream`` that belong to no other part of the package."""
