# SPDX-License-Identifier: Apache-2.0
"""Bags and videos: topics, messages and RGB frames, and replay over DDS."""
