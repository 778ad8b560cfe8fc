# SPDX-License-Identifier: Apache-2.0
"""Synthetic camera streams with known content, and questions about them with known answers."""
