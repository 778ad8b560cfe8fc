# SPDX-License-Identifier: Apache-2.0
"""The frame gate passes what is new and nothing else."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.scenes import PATCH, Bytes, scene, shifted, with_noise, with_thing

from ros_kvstream.errors import FrameError
from ros_kvstream.settings import GateSettings
from ros_kvstream.vision.frame_gate import FrameGate

PATIENT = GateSettings(max_silence=1e6)


def decisions(frames: list[Bytes], settings: GateSettings = PATIENT, rate: float = 10.0) -> list[tuple[bool, str]]:
    """(kept, reason) of every frame of a stream at ``rate`` frames a second."""
    gate = FrameGate(settings)
    found = [gate.decide(frame, index / rate) for index, frame in enumerate(frames)]
    return [(decision.kept, decision.reason) for decision in found]


@pytest.mark.parametrize("deviation", [0.0, 2.0, 8.0, 15.0])
def test_noise_of_a_still_camera_is_no_motion(deviation: float) -> None:
    frames = [with_noise(scene(), deviation, seed) for seed in range(8)]
    assert decisions(frames) == [(True, "first")] + [(False, "redundant")] * 7


def test_exposure_and_white_balance_are_no_motion_but_lights_off_and_a_covered_camera_are_news() -> None:
    gains = np.array([[1, 1, 1], [0.8, 0.8, 0.8], [1.25, 1.2, 1.25], [1.1, 1.0, 0.9], [0.3, 0.3, 0.3]])
    found = decisions([with_noise(scene() * gain, 3.0, seed) for seed, gain in enumerate(gains)])
    assert [kept for kept, _ in found[:4]] == [True, False, False, False]
    assert found[4] == (True, "exposure")
    assert decisions([scene(), np.zeros_like(scene())])[1][0]


@pytest.mark.parametrize("flow", ["dis_ultrafast", "dis_fast", "dis_medium", "farneback"])
def test_a_slow_pan_adds_up_to_motion_and_a_fast_one_passes_every_frame(flow: str) -> None:
    fast = decisions([shifted(scene(), 6.0 * i) for i in range(6)], GateSettings(flow=flow, max_silence=1e6))
    assert [kept for kept, _ in fast] == [True] * 6
    slow = decisions([shifted(scene(), 0.4 * i) for i in range(60)], GateSettings(flow=flow, max_silence=1e6))
    assert 1 < sum(kept for kept, _ in slow) < 30


def test_shaking_by_less_than_a_pixel_is_no_motion() -> None:
    random = np.random.default_rng(3)
    frames = [with_noise(shifted(scene(), *random.uniform(-0.3, 0.3, 2)), 3.0, i) for i in range(8)]
    assert sum(kept for kept, _ in decisions(frames)) == 1


def test_motion_is_measured_in_pixels_of_the_original_per_second() -> None:
    picture = scene(4)
    for shrink in (1, 2):
        small = np.ascontiguousarray(picture[::shrink, ::shrink])
        gate = FrameGate(GateSettings(motion=60.0 / shrink, residual=30.0))
        gate.decide(small, 0.0)
        decision = gate.decide(shifted(small, 10.0 / shrink), 0.25)
        assert decision.motion == pytest.approx(40.0 / shrink, rel=0.25)


@pytest.mark.parametrize("mode", ["flow", "adaptive"])
@pytest.mark.parametrize("colour", [(220, 40, 40), (40, 40, 60), (200, 200, 190)])
def test_a_thing_of_two_patches_that_crosses_for_half_a_second_passes(mode: str, colour: tuple[int, int, int]) -> None:
    """At 10 Hz: still scene, six frames with the thing at another place each, still scene."""
    frames = []
    for index in range(40):
        frame, step = scene(5), index - 30
        if 0 <= step < 6:
            frame = with_thing(frame, 20 + step * 70, 150, 2 * PATCH, PATCH, colour)
        frames.append(with_noise(frame, 4.0, index))
    kept = [kept for kept, _ in decisions(frames, GateSettings(mode=mode, max_silence=1e6))]
    assert all(kept[30:37]), "each frame with the thing, and the first without it"
    assert sum(kept[:30]) == 1 and sum(kept[37:]) == 0


def test_a_small_thing_that_appears_without_moving_is_news_once() -> None:
    plain, new = scene(6), with_thing(scene(6), 200, 200, PATCH // 2, PATCH // 2, (250, 60, 60))
    frames = [with_noise(frame, 4.0, i) for i, frame in enumerate([plain, plain, new, new, new])]
    assert [kept for kept, _ in decisions(frames)] == [True, False, True, False, False]


def test_a_thing_of_another_colour_and_equal_lightness_is_news() -> None:
    grey = np.full((336, 448, 3), 128, np.uint8)
    red = with_thing(grey, 200, 100, PATCH, PATCH, (188, 105, 108))
    assert decisions([with_noise(grey, 3.0, 0), with_noise(red, 3.0, 1)])[1][0]


def test_a_frame_passes_after_the_longest_silence_and_every_frame_where_the_gate_is_off() -> None:
    assert decisions([scene()] * 3, GateSettings(mode="off")) == [(True, "off")] * 3
    found = decisions([scene()] * 25, GateSettings(max_silence=1.0))
    assert [i for i, (kept, _) in enumerate(found) if kept] == [0, 10, 20]
    assert found[10] == (True, "silence")


def test_another_size_passes_and_becomes_the_reference() -> None:
    small = np.ascontiguousarray(scene()[::2, ::2])
    found = decisions([scene(), scene(), small, small, scene()])
    assert [reason for _, reason in found] == ["first", "redundant", "resized", "redundant", "resized"]


def test_a_jump_backward_in_time_passes_and_starts_anew() -> None:
    gate = FrameGate(PATIENT)
    reasons = [gate.decide(scene(), stamp).reason for stamp in (100.0, 100.5, 3.0, 3.5)]
    assert reasons == ["first", "redundant", "time_reset", "redundant"]


def test_equal_stamps_are_no_error() -> None:
    gate = FrameGate(PATIENT)
    assert [gate.decide(scene(), 1.0).kept for _ in range(2)] == [True, False]
    assert gate.decide(shifted(scene(), 9.0), 1.0).kept


def test_the_caller_may_reuse_its_frame() -> None:
    gate, frame = FrameGate(PATIENT), np.ascontiguousarray(scene()[::3, ::3])
    gate.decide(frame, 0.0)
    frame[:] = 255 - frame
    assert gate.decide(frame, 1.0).kept


def swaying(frames: int) -> list[Bytes]:
    """A camera that sways with changing speed; no two frames are alike."""
    still = scene(0, 168, 224)
    ways = [20 * math.sin(i * 0.7 + (i / 9) ** 2) for i in range(frames)]
    return [with_noise(shifted(still, way), 3.0, index) for index, way in enumerate(ways)]


@pytest.mark.parametrize(
    ("target", "share"), [({"target_share": 0.2}, 0.2), ({"target_share": 0.5}, 0.5), ({"target_rate": 2.0}, 0.2)]
)
def test_adaptive_follows_a_share_or_a_rate(target: dict[str, float], share: float) -> None:
    """Of frames at 10 Hz."""
    found = decisions(swaying(300), GateSettings(mode="adaptive", max_silence=1e6, **target))
    assert sum(kept for kept, _ in found[100:]) / 200 == pytest.approx(share, abs=0.08)


def test_the_changed_patches_are_those_of_the_thing() -> None:
    gate = FrameGate(PATIENT)
    gate.decide(with_noise(scene(), 3.0, 0), 0.0)
    assert gate.changed_patches(12, 16) is None
    gate.decide(with_noise(with_thing(scene(), 5 * PATCH, 7 * PATCH, 2 * PATCH, PATCH, (255, 0, 255)), 3.0, 1), 0.1)
    changed = gate.changed_patches(12, 16)
    assert changed is not None and changed.shape == (12, 16)
    assert (changed[7, 5:7] > 20).all()
    far = changed.copy()
    far[6:9, 4:8] = 0
    assert far.max() < 3


@pytest.mark.parametrize(("shape", "stamp"), [((8, 8), 0.0), ((8, 8, 3), math.nan)])
def test_what_is_no_frame_is_refused(shape: tuple[int, ...], stamp: float) -> None:
    with pytest.raises(FrameError):
        FrameGate(PATIENT).decide(np.zeros(shape, np.uint8), stamp)


@pytest.mark.parametrize("size", [(1, 1), (2, 300), (300, 2), (7, 5), (1080, 1920)])
def test_any_size_of_frame_works(size: tuple[int, int]) -> None:
    frame = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    assert [kept for kept, _ in decisions([frame, frame])] == [True, False]
