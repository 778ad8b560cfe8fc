# SPDX-License-Identifier: Apache-2.0
"""Before the model: which frames and which patches are worth computing. OpenCV and numpy only."""
