# SPDX-License-Identifier: Apache-2.0
"""The frame filter: a frame gate per camera, and the salient patches of each frame that passes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ros_kvstream.settings import GateSettings, SaliencySettings
from ros_kvstream.vision.frame_gate import FrameGate, GateDecision
from ros_kvstream.vision.saliency import novel_patches, saliency_map, salient_patches


class FrameFilter:
    """Frame gate and saliency of all cameras. Keeps one small picture per camera; not thread-safe."""

    def __init__(self, gate: GateSettings, saliency: SaliencySettings) -> None:
        self._gate_settings = gate
        self._saliency = saliency
        self._gates: dict[str, FrameGate] = {}
        self._whole: dict[str, float] = {}

    def decide(self, frame: NDArray[Any], stamp: float, camera: str) -> GateDecision:
        """Decide whether a frame is computed; RGB uint8 [height, width, 3], stamp in seconds."""
        if camera not in self._gates:
            self._gates[camera] = FrameGate(self._gate_settings)
        return self._gates[camera].decide(frame, stamp)

    def patches(
        self, frame: NDArray[Any], stamp: float, camera: str, grid: tuple[int, int], resized_hw: tuple[int, int]
    ) -> NDArray[np.bool_] | None:
        """Patches of the last decided frame that are computed, bool [rows * columns]; None for all of them.

        :param grid: (rows, columns) of merged patches; :param resized_hw: (height, width) after the model's resize.
        """
        if self._saliency.mode == "off":
            return None
        gate = self._gates.get(camera)
        changed = gate.changed_patches(*grid) if gate is not None else None
        if self._saliency.mode == "novel":
            since = stamp - self._whole.get(camera, -np.inf)
            if changed is None or not 0 <= since < self._gate_settings.max_silence:
                self._whole[camera] = stamp
                return None
            kept = novel_patches(changed, self._saliency)
            if kept is not None:
                return None if kept.all() else kept.reshape(-1)
        kept = salient_patches(saliency_map(frame, *grid, resized_hw), self._saliency, changed)
        return None if kept.all() else kept.reshape(-1)

    def forget(self, camera: str) -> None:
        """Let this camera's next frame pass whole; call it when the frame to compare with has left the memory."""
        self._gates.pop(camera, None)
        self._whole.pop(camera, None)

    def reset(self) -> None:
        """Let every camera's next frame pass whole."""
        self._gates.clear()
        self._whole.clear()
