# SPDX-License-Identifier: Apache-2.0
"""Settings of every test process: import path, one thread of computation, local ROS discovery, Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

# benchmarks/ and training/ are not installed. Last, so that an installed ros_kvstream, which holds its generated
# interfaces, is found before the sources.
sys.path.append(str(Path(__file__).resolve().parents[1]))

for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# A shell starts background jobs with these ignored, and children inherit that: tests of Ctrl-C would wait for ever.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)
