# SPDX-License-Identifier: Apache-2.0
"""The executable ``kvstream_node``: Ctrl-C and SIGTERM end it with status 0 at any time, also while it starts or ends.

``main`` imports ROS 2 and the node, which takes a second, after it has set its signal handlers.
"""

from __future__ import annotations

import os
import signal
import sys

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main() -> None:
    """Run the node and end the process. The interpreter is not torn down: torch and rclpy need seconds for that."""
    for number in SIGNALS:
        signal.signal(number, lambda *_: os._exit(0))  # nothing is open yet
    from ros_kvstream.node.run import run

    try:
        for number in SIGNALS:
            signal.signal(number, signal.default_int_handler)  # rclpy calls it after its own
        status = run(ending=ignore_signals)
    except KeyboardInterrupt:
        status = 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def ignore_signals() -> None:
    """Ignore further signals: the end of the node is bounded, and must not be interrupted."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    main()
