"""A steady beat in its own thread: it goes on when /clock stands still and while a model is being loaded."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Heartbeat:
    """Calls a function again and again in real time until stopped."""

    def __init__(self, period: Callable[[], float], beat: Callable[[], None],
                 failed: Callable[[Exception], None]) -> None:
        """Start beating.

        :param period: seconds to the next beat; :param beat: called from the thread; :param failed: gets what
            ``beat`` raised, and the beat goes on.
        """
        self._period = period
        self._beat = beat
        self._failed = failed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvstream_heartbeat", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._period()):
            try:
                self._beat()
            except Exception as error:  # noqa: BLE001 - reporting must not end because one report failed
                if not self._stop.is_set():
                    self._failed(error)

    def stop(self) -> None:
        """End the thread and wait for it; afterwards nothing it uses is touched any more."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)
