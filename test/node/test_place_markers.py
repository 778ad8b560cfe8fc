# SPDX-License-Identifier: Apache-2.0
"""What ~/places shows: a sphere at each moment, bright when it is new, and a stroke in the robot's direction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from builtin_interfaces.msg import Time
from geometry_msgs.msg import Point
from std_msgs.msg import ColorRGBA
from visualization_msgs.msg import Marker, MarkerArray

from ros_kvstream.node import place_markers
from ros_kvstream.node.place_markers import DIAMETER, LIMIT, NEWEST, OLDEST, PlaceMarkers, markers
from ros_kvstream.poses import FramePose, Pose
from ros_kvstream.records import Place


def place(number: int, x: float = 0.0, y: float = 0.0, yaw: float = 0.0, stamp: float | None = None) -> Place:
    base = Pose.from_euler((x, y, 0.0), 0.0, 0.0, yaw)
    return Place(number, 10.0 + number if stamp is None else stamp, "camera", FramePose("odom#a", base, base))


def at(point: Point) -> tuple[float, float, float]:
    return point.x, point.y, point.z


def colour(shade: ColorRGBA) -> tuple[float, float, float]:
    return shade.r, shade.g, shade.b


def lists(message: MarkerArray) -> tuple[Marker, Marker]:
    """The spheres and the strokes, after the removal of what was drawn before."""
    removal, spheres, strokes = message.markers
    assert removal.action == Marker.DELETEALL
    assert (spheres.action, spheres.type, strokes.type) == (Marker.ADD, Marker.SPHERE_LIST, Marker.LINE_LIST)
    return spheres, strokes


def test_each_moment_is_a_sphere_with_a_stroke_ahead_of_the_robot() -> None:
    spheres, strokes = lists(markers([place(0, 1.0, 2.0), place(1, 3.0, 4.0, math.pi / 2)]))
    assert [at(point) for point in spheres.points] == [(1.0, 2.0, 0.0), (3.0, 4.0, 0.0)]
    begin, ahead, other, left = map(at, strokes.points)
    assert (begin, other) == ((1.0, 2.0, 0.0), (3.0, 4.0, 0.0))
    assert ahead == pytest.approx((1.0 + 2 * DIAMETER, 2.0, 0.0))
    assert left == pytest.approx((3.0, 4.0 + 2 * DIAMETER, 0.0))
    assert len(spheres.colors) == 2 and len(strokes.colors) == 4


def test_the_newest_is_bright_the_oldest_dark_and_the_others_between_by_their_age() -> None:
    spheres, _ = lists(markers([place(number, stamp=stamp) for number, stamp in enumerate((0.0, 50.0, 75.0, 100.0))]))
    shades = [colour(shade) for shade in spheres.colors]
    assert shades[0] == pytest.approx(OLDEST) and shades[-1] == pytest.approx(NEWEST)
    for shade, age in zip(shades, (1.0, 0.5, 0.25, 0.0), strict=True):
        wanted = [new + age * (old - new) for old, new in zip(OLDEST, NEWEST, strict=True)]
        assert shade == pytest.approx(wanted, abs=0.03)
    assert all(shade.a == 1.0 for shade in spheres.colors)


def test_a_single_moment_is_bright() -> None:
    spheres, _ = lists(markers([place(0)]))
    assert colour(spheres.colors[0]) == pytest.approx(NEWEST)


def test_they_are_in_the_frame_of_the_poses_at_the_newest_transform() -> None:
    message = markers([place(0), place(1)])
    assert {marker.header.frame_id for marker in message.markers} == {"odom"}
    assert all(marker.header.stamp == Time() and marker.frame_locked for marker in message.markers)


def test_in_a_large_map_the_spheres_grow_and_in_a_small_one_they_have_their_smallest_size() -> None:
    small, large = (lists(markers([place(0), place(1, far)]))[0].scale.x for far in (3.0, 300.0))
    assert small == DIAMETER and large == pytest.approx(2.0)


def test_without_places_what_was_drawn_is_removed() -> None:
    (removal,) = markers([]).markers
    assert removal.action == Marker.DELETEALL


class Viewer:
    """A lifecycle publisher with a given number of subscribers, and a clock."""

    def __init__(self) -> None:
        self.subscribers, self.now = 1, 100.0
        self.publisher = Mock(is_activated=True, get_subscription_count=lambda: self.subscribers)
        self.drawing = PlaceMarkers(SimpleNamespace(create_lifecycle_publisher=lambda *_: self.publisher))
        self.limits: list[int] = []

    def places(self, limit: int) -> Sequence[Place]:
        self.limits.append(limit)
        return [place(0)]


@pytest.fixture
def viewer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Viewer]:
    made = Viewer()
    monkeypatch.setattr(place_markers.time, "monotonic", lambda: made.now)
    yield made


def test_frames_draw_at_most_once_a_second_and_never_more_than_the_limit(viewer: Viewer) -> None:
    for moment in (100.0, 100.5, 100.99, 101.0, 101.5, 102.5):
        viewer.now = moment
        viewer.drawing.observed(viewer.places)
    assert viewer.limits == [LIMIT] * 3 and viewer.publisher.publish.call_count == 3


def test_a_cleared_memory_is_drawn_at_once(viewer: Viewer) -> None:
    viewer.drawing.observed(viewer.places)
    viewer.drawing.draw(lambda _: ())
    (removal,) = viewer.publisher.publish.call_args.args[0].markers
    assert removal.action == Marker.DELETEALL


def test_nothing_is_read_from_the_memory_while_nobody_looks_or_the_node_is_inactive(viewer: Viewer) -> None:
    viewer.subscribers = 0
    viewer.drawing.observed(viewer.places)
    viewer.subscribers, viewer.publisher.is_activated = 1, False
    viewer.drawing.draw(viewer.places)
    assert viewer.limits == [] and not viewer.publisher.publish.called
