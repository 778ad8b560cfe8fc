# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from ros_kvstream.errors import FrameError
from ros_kvstream.vision.frame_check import MAX_FRAME_SIDE, check_frame


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (None, "must be RGB uint8"),
        (np.zeros((8, 8), np.uint8), r"shape \(8, 8\)"),
        (np.zeros((8, 8, 4), np.uint8), r"shape \(8, 8, 4\)"),
        (np.zeros((8, 8, 3), np.float32), "float32"),
        (np.zeros((0, 8, 3), np.uint8), "8 x 0 pixels"),
        (np.zeros((1, MAX_FRAME_SIDE + 1, 3), np.uint8), "each side must be 1 to"),
        (np.zeros((2, 402, 3), np.uint8), "factor of 200"),
    ],
)
def test_what_is_no_frame_is_refused_with_its_shape_and_the_limit(frame: object, message: str) -> None:
    with pytest.raises(FrameError, match=message):
        check_frame(frame, 0.0)


@pytest.mark.parametrize("stamp", [float("nan"), float("inf"), float("-inf")])
def test_a_stamp_that_is_no_number_is_refused(stamp: float) -> None:
    check_frame(np.zeros((480, 640, 3), np.uint8), 12.5)
    with pytest.raises(FrameError, match="finite number of seconds"):
        check_frame(np.zeros((8, 8, 3), np.uint8), stamp)
