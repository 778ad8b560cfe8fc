# SPDX-License-Identifier: Apache-2.0
"""Six cameras of different sizes, rates and transports in one real node: one memory, nobody hurts anybody."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from lifecycle_msgs.msg import Transition
from sensor_msgs.msg import CompressedImage, Image
from support.running_node import RunningNode, compressed, image, picture, running_node

from ros_kvstream.msg import CameraStats

OK, STALE = DiagnosticStatus.OK, DiagnosticStatus.STALE


@dataclass
class Lens:
    """One camera of the test."""

    width: int
    height: int
    compressed: bool
    frames: int
    """Published per round."""
    publisher: Any = None


LENSES = {"front": Lens(56, 56, False, 12), "rear": Lens(84, 56, True, 6), "left": Lens(56, 112, False, 3),
          "right": Lens(112, 84, True, 3), "down": Lens(28, 28, False, 1), "arm": Lens(168, 112, False, 1)}


class Stamps:
    """Growing stamps over all tests of this module."""

    newest = 100.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, random_model: Path) -> Iterator[RunningNode]:
    folder = tmp_path_factory.mktemp("many")
    parameters: dict[str, Any] = {
        "model": random_model, "cameras": str(list(LENSES)).replace("'", '"'), "memory.budget_mib": 0.5,
        "memory.policy": "recent", "memory.max_question_tokens": 16, "memory.max_answer_tokens": 8, "gate.mode": "off",
        "ingest.queue_frames": 32, "diagnostics.no_image_s": 30.0, "memory.directory": folder}
    parameters |= {f"{name}.transport": "compressed" for name, lens in LENSES.items() if lens.compressed}
    with running_node(folder, parameters) as running:
        running.until_active()
        for name, lens in LENSES.items():
            connect(running, name, lens)
        yield running


def connect(node: RunningNode, name: str, lens: Lens) -> None:
    topic, kind = (f"/{name}/image/compressed", CompressedImage) if lens.compressed else (f"/{name}/image", Image)
    lens.publisher = node.camera(topic, kind)


def publish(node: RunningNode, frames: dict[str, int]) -> None:
    """Publish each camera's frames evenly over one second of stamps, and wait until each is accounted for."""
    before = {camera.name: camera.frames_published for camera in node.until_stats(lambda _: True).cameras}
    due = sorted((index / count, name) for name, count in frames.items() for index in range(count))
    for share, name in due:
        lens, stamp = LENSES[name], Stamps.newest + share
        pixels = picture(int(1000 * stamp) % 2**31, lens.width, lens.height)
        if lens.compressed:
            lens.publisher.publish(compressed(cv2.imencode(".jpg", pixels[..., ::-1])[1].tobytes(), stamp))
        else:
            lens.publisher.publish(image(pixels, stamp))
        node.spin(0.01)
    Stamps.newest += 1.0
    node.until_stats(lambda now: now.queue_length == 0 and all(
        figures(now.cameras, name).frames_published >= before.get(name, 0) + count for name, count in frames.items()))


def figures(cameras: list[CameraStats], name: str) -> CameraStats:
    return next((camera for camera in cameras if camera.name == name), CameraStats())


def slots(node: RunningNode, name: str) -> int:
    """Slots of a camera in the memory, from a report that is newer than this call."""
    node.diagnostics.clear()
    values = {value.key: value.value for value in node.status(f"camera {name}").values}
    return int(values["slots in memory"])


def test_every_camera_is_seen_accounted_for_and_answers_for_itself(node: RunningNode) -> None:
    publish(node, {name: lens.frames for name, lens in LENSES.items()})
    stats = node.until_stats(lambda _: True)
    assert [camera.name for camera in stats.cameras] == list(LENSES)
    for name, lens in LENSES.items():
        camera = figures(stats.cameras, name)
        assert camera.frames_published == lens.frames == camera.frames_seen + sum(camera.drop_counts), name
        response = node.ask("what is there ?", camera=name, max_new_tokens=2)
        assert response.success and {evidence.camera for evidence in response.evidence} == {name}
    everything = node.ask("what is there ?", max_new_tokens=2)
    assert everything.success and {evidence.camera for evidence in everything.evidence} <= set(LENSES)
    assert all(slots(node, name) > 0 for name in LENSES)


def test_a_fast_camera_takes_no_slot_that_the_slow_ones_need(node: RunningNode) -> None:
    publish(node, {"down": 1, "arm": 1, "right": 1})
    before = {name: slots(node, name) for name in ("down", "arm", "right")}
    compactions = node.until_stats(lambda _: True).compactions
    while node.until_stats(lambda _: True).compactions < compactions + 3:
        publish(node, {"front": 40})
    assert {name: slots(node, name) for name in before} == before
    assert all(node.ask("what is there ?", camera=name, max_new_tokens=1).success for name in before)


def test_shares_are_parameters_that_may_change_at_any_time(node: RunningNode) -> None:
    assert node.set_parameter("front.share", 0.5) == ""
    assert "must be at most 1" in node.set_parameter("rear.share", 0.6)
    assert "rear.share out of range Min: 0.0, Max: 1.0" in node.set_parameter("rear.share", float("nan"))
    assert "must be of type number" in node.set_parameter("rear.share", "half")
    assert node.set_parameter("front.share", 0) == ""


def test_a_camera_that_dies_goes_stale_and_the_others_go_on(node: RunningNode) -> None:
    assert node.set_parameter("diagnostics.no_image_s", 0.3) == ""
    node.client.destroy_publisher(LENSES["arm"].publisher)
    node.until_status("camera arm", lambda status: status.level == STALE and "no publisher on" in status.message)
    for _ in range(3):
        publish(node, {"front": 2, "rear": 1})
    node.until_status("camera rear", lambda status: status.level == OK or status.message.startswith("no image for"))
    assert node.diagnostics["state"].level == OK and node.diagnostics["camera arm"].level == STALE
    assert node.ask("what is there ?", camera="rear", max_new_tokens=1).success
    assert node.ask("what was there ?", camera="arm", max_new_tokens=1).success  # what it saw is still remembered
    assert node.set_parameter("diagnostics.no_image_s", 30.0) == ""


def test_cameras_are_added_and_removed_by_reconfiguring_and_the_memory_may_go_on(node: RunningNode) -> None:
    assert node.save("before").success
    for transition in (Transition.TRANSITION_DEACTIVATE, Transition.TRANSITION_CLEANUP):
        assert node.change(transition)
    assert node.set_parameter("cameras", ["front", "mast"]) == ""
    assert node.set_parameter("mast.topic", "/mast/lens") == ""
    assert node.set_parameter("memory.restore", "before") == ""
    for transition in (Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE):
        assert node.change(transition), node.output()
    LENSES["mast"] = Lens(56, 56, False, 1, node.camera("/mast/lens"))
    node.until(lambda: LENSES["front"].publisher.get_subscription_count() == 1
               and LENSES["rear"].publisher.get_subscription_count() == 0, "the subscriptions to change")
    for name in ("front", "rear"):  # "rear" is no longer listened to, and still remembered
        response = node.ask("what is there ?", camera=name, max_new_tokens=1)
        assert response.success and {evidence.camera for evidence in response.evidence} == {name}
    publish(node, {"front": 2, "mast": 2})
    assert [camera.name for camera in node.until_stats(lambda _: True).cameras] == ["front", "mast"]
    assert node.ask("what is there ?", camera="mast", max_new_tokens=1).success
    while node.ask("what is there ?", camera="rear", max_new_tokens=1).finish_reason != "not_covered":
        publish(node, {"front": 40, "mast": 10})  # a camera that is not subscribed any more is evicted first
    assert Stamps.newest < 1e4
