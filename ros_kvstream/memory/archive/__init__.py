# SPDX-License-Identifier: Apache-2.0
"""The bounded second tier: frames that leave the arena, in host memory or in a crash-safe file."""
