# SPDX-License-Identifier: Apache-2.0
"""Path of the patrol robot over a floor plan: eight rooms around a small round lobby, one door each.

In a room, the robot creeps from the door to a point inside and back, repeatedly, and is at the door when it leaves. It
crosses the lobby in a straight line. The base is omnidirectional: it moves in any direction without turning.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ros_kvstream.patrol.scene import ROOMS

LOBBY_RADIUS = 0.4
"""Distance of every door from the origin of the map, metres."""
DRIVE_SPEED = 1.2
"""Highest speed through the lobby, metres per second."""
CREEP_SPEEDS = (0.1, 0.4)
"""Lowest and highest speed in a room, metres per second."""
REACH = 3.0
"""Longest distance from the door of a room, metres."""
SPREAD = math.radians(40.0)
"""Angle between the outermost directions from a door into its room; less than the room's sector."""
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0

Point = tuple[float, float]


@dataclass(frozen=True)
class Passage:
    """A drive through the lobby, during which the picture changes from one room to another."""

    begin: float
    """Stamp of the last picture of the previous room, seconds."""
    end: float
    """Stamp of the first picture that shows only the next room, seconds."""
    room: str
    """The next room."""


@dataclass(frozen=True)
class _Stay:
    """The time in one room."""

    room: str
    begin: float
    end: float
    """Seconds; before ``begin`` where the stream starts in the lobby."""
    speed: float
    """Metres per second."""
    direction: float
    """Direction of the first way into the room, 0 - 1 of SPREAD."""

    def position(self, stamp: float) -> Point:
        """Where the robot is, metres."""
        at = door(self.room)
        if self.end <= self.begin:
            return at
        seconds = self.end - self.begin
        trips = max(1, math.ceil(self.speed * seconds / (2 * REACH)))
        trip, share = divmod(min(max(stamp, self.begin), self.end) - self.begin, seconds / trips)
        way = self.speed * min(share, seconds / trips - share)
        turn = ((self.direction + trip * _GOLDEN) % 1.0 - 0.5) * SPREAD
        angle = room_angle(self.room) + turn
        return at[0] + way * math.cos(angle), at[1] + way * math.sin(angle)


def room_angle(room: str) -> float:
    """Direction from the origin to a room's door and into the room, radians from the x axis."""
    return 2 * math.pi * ROOMS.index(room) / len(ROOMS)


def door(room: str) -> Point:
    """Position of a room's door, metres."""
    return LOBBY_RADIUS * math.cos(room_angle(room)), LOBBY_RADIUS * math.sin(room_angle(room))


class PatrolPath:
    """Position of the robot at every stamp."""

    def __init__(
        self, room: str, passages: Sequence[Passage], start: float, end: float, random: np.random.Generator
    ) -> None:
        """:param room: the first one; :param passages: in order; :param start, end: of the path, seconds."""
        stays, since = [], start
        for passage in passages:
            seconds = math.dist(door(room), door(passage.room)) / DRIVE_SPEED
            leaves = min(passage.begin, passage.end - seconds)
            stays.append(_stay(room, since, leaves, random))
            room, since = passage.room, passage.end
        self._stays = [*stays, _stay(room, since, end, random)]
        self._ends = [stay.end for stay in stays]

    def position(self, stamp: float) -> Point:
        """Position of the base in the map, metres; before the start and after the end, the robot stands still."""
        index = bisect_right(self._ends, stamp)
        stay = self._stays[index]
        if index == 0 or stamp >= stay.begin:
            return stay.position(stamp)
        before = self._stays[index - 1]
        share = (stamp - before.end) / (stay.begin - before.end)
        (x, y), (to_x, to_y) = door(before.room), door(stay.room)
        return x + share * (to_x - x), y + share * (to_y - y)


def _stay(room: str, begin: float, end: float, random: np.random.Generator) -> _Stay:
    return _Stay(room, begin, end, float(random.uniform(*CREEP_SPEEDS)), float(random.random()))
