# SPDX-License-Identifier: Apache-2.0
"""What is kept, in how many bytes: torch only, no model family, no ROS."""
