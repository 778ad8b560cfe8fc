# SPDX-License-Identifier: Apache-2.0
"""~/places: where the robot was at the remembered moments, coloured by age, with a stroke in its direction."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
from geometry_msgs.msg import Point
from rclpy.lifecycle import LifecycleNode
from std_msgs.msg import ColorRGBA
from visualization_msgs.msg import Marker, MarkerArray

from ros_kvstream.poses import Vector, rotate
from ros_kvstream.records import Place

LIMIT = 1000
"""Most moments that are drawn; of more, some are left out evenly."""
PERIOD = 1.0
"""Shortest time between two messages in seconds."""
DIAMETER = 0.15
"""Smallest diameter of a moment in metres."""
SHARE_OF_EXTENT = 1 / 150
"""Diameter as a share of the extent of all places, so that a large map is readable as a whole."""
OLDEST, NEWEST = (0.15, 0.25, 0.55), (1.0, 0.95, 0.3)
"""Colours of the ends, red green blue, 0 - 1: dark blue to bright yellow."""
SHADES = [ColorRGBA(r=float(r), g=float(g), b=float(b), a=1.0) for r, g, b in np.linspace(OLDEST, NEWEST, 32)]
"""Colours from the oldest to the newest."""


class PlaceMarkers:
    """Draws while the topic has a subscriber. Runs in the worker's thread, because it reads the memory."""

    def __init__(self, node: LifecycleNode) -> None:
        self._publisher = node.create_lifecycle_publisher(MarkerArray, "~/places", 1)
        self._drawn = 0.0

    def observed(self, places: Callable[[int], Sequence[Place]]) -> None:
        """Draw the places after a frame, at most once per PERIOD.

        :param places: largest number -> so many places or fewer, by stamp.
        """
        if time.monotonic() - self._drawn >= PERIOD:
            self.draw(places)

    def draw(self, places: Callable[[int], Sequence[Place]]) -> None:
        """Draw the places now, such as after all frames were removed; parameter as in :meth:`observed`."""
        if self._publisher.is_activated and self._publisher.get_subscription_count() > 0:
            self._drawn = time.monotonic()
            self._publisher.publish(markers(places(LIMIT)))


def markers(places: Sequence[Place]) -> MarkerArray:
    """Build the markers of places, ordered by stamp: a sphere at each and a stroke in the direction of the base.

    The first marker removes what was drawn before; without places it is the only one.
    """
    removal = Marker(action=Marker.DELETEALL)
    if not places:
        return MarkerArray(markers=[removal])
    positions = [place.pose.base.position for place in places]
    size = max(DIAMETER, SHARE_OF_EXTENT * float(np.linalg.norm(np.ptp(positions, axis=0))))
    spheres, strokes = Marker(ns="moments", type=Marker.SPHERE_LIST), Marker(ns="directions", type=Marker.LINE_LIST)
    spheres.points, spheres.colors = [_point(position) for position in positions], _colours(places)
    spheres.scale.x = spheres.scale.y = spheres.scale.z = size
    ends = [_point(_ahead(place, 2.0 * size)) for place in places]
    strokes.points = [point for pair in zip(spheres.points, ends, strict=True) for point in pair]
    strokes.colors = [colour for colour in spheres.colors for _ in range(2)]
    strokes.scale.x = size / 4
    for marker in (removal, spheres, strokes):
        marker.header.frame_id = places[0].pose.frame_id
        # Viewers transform them by the newest transform: the stamp is zero, and they stay locked to the map.
        marker.frame_locked = True
    return MarkerArray(markers=[removal, spheres, strokes])


def _colours(places: Sequence[Place]) -> list[ColorRGBA]:
    oldest, newest = places[0].stamp, places[-1].stamp
    seconds = newest - oldest or math.inf  # moments of one stamp are all new
    return [SHADES[round((len(SHADES) - 1) * (1.0 - (newest - place.stamp) / seconds))] for place in places]


def _ahead(place: Place, distance: float) -> Vector:
    """Return the point at a distance in front of the robot's base (REP-103: along x)."""
    x, y, z = place.pose.base.position
    dx, dy, dz = rotate(place.pose.base.orientation, (distance, 0.0, 0.0))
    return x + dx, y + dy, z + dz


def _point(position: Vector) -> Point:
    x, y, z = position
    return Point(x=x, y=y, z=z)
