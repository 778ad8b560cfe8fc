# SPDX-License-Identifier: Apache-2.0
"""The patrol world: a seeded camera stream of any length, with questions whose answers are known.

A robot drives from room to room. Its camera stands still, pans, or moves into the next room. From time to time, one to
three objects of one kind appear in a quadrant of the picture for a few frames. All other frames are redundant except
for sensor noise. The robot's path (path.py) follows from the camera's moves; otherwise its position does not
change the picture.

    world = PatrolWorld(PatrolSettings(seed=7, frames=96, objects=8, rate_hz=2.0, size=224))
    for frame in world:                    # lazy: one picture at a time, whatever the length
        memory.observe(frame.picture, frame.stamp)
    for question in world.questions(10):   # asked after the last frame; at=i asks after frame i
        ...                                # question.text, .answer, .kind, .when, .evidence (stamps)
    world.pose(17)                         # where the robot was at frame 17; pose_at(stamp) at any time

Equal settings give equal pictures, stamps, poses and questions. ``world.frame(i)`` draws a single frame.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from ros_kvstream.patrol.path import Passage, PatrolPath
from ros_kvstream.patrol.questions import Question, make_questions
from ros_kvstream.patrol.scene import (
    COLOURS,
    NATIVE_SIZE,
    NUMBERS,
    PANORAMA_WIDTH,
    PLACES,
    QUADRANT,
    ROOMS,
    SHAPES,
    Sighting,
    object_mask,
    panorama,
)
from ros_kvstream.poses import FramePose, Pose, map_segment
from ros_kvstream.settings import require, require_finite

MAP_FRAME = "odom"
"""Frame of the poses. They are exact, so that it does not drift as a real robot's odometry does."""
MAP = map_segment(MAP_FRAME, "patrol")
"""Segment of the map that the poses of every patrol belong to."""
PATH_MARGIN = 1.0
"""Seconds before the first and after the last frame for which the path is known."""
_NOISE_LENGTH = 1 << 20
_EVEN_SHARE = 0.6
"""Share of the frames without a sighting that is distributed evenly between the sightings; the rest is random."""


@dataclass(frozen=True)
class PatrolSettings:
    """Settings of one stream."""

    seed: int = 0
    frames: int = 96
    """Number of frames, at least 1; ten hours at 30 frames per second are 1,080,000."""
    objects: int = 8
    """Number of sightings, 0 - 8, each of a different shape; a short stream may have fewer."""
    rate_hz: float = 2.0
    """Frames per second, 0.1 - 60."""
    size: int = NATIVE_SIZE
    """Width and height in pixels, a multiple of 56; the tiny model sees 56."""
    noise: float = 6.0
    """Standard deviation of the sensor noise, grey levels."""
    start: float = 0.0
    """Stamp of the first frame, seconds."""
    pause_share: float = 0.0
    """Share of the frames without an object that are followed by a pause, as behind a frame gate or a bad network."""
    longest_pause: float = 30.0
    """Longest pause, seconds."""
    ends_in_view: float = 0.4
    """Probability that the last sighting is in view in the last frame."""
    sighting_frames: tuple[int, int] = (1, 3)
    """Minimum and maximum number of frames of a sighting. A sighting lasts at least half a second at any rate."""

    def __post_init__(self) -> None:
        require(self.frames >= 1, "frames", self.frames, "at least 1")
        require(0 <= self.objects <= len(SHAPES), "objects", self.objects, f"0 to {len(SHAPES)}")
        require_finite("rate_hz", self.rate_hz, 0.1, 60.0)
        whole = self.size >= NATIVE_SIZE and self.size % NATIVE_SIZE == 0
        require(whole, "size", self.size, f"a multiple of {NATIVE_SIZE}")
        require_finite("noise", self.noise, 0.0, 60.0)
        require_finite("pause_share", self.pause_share, 0.0, 1.0)
        require_finite("longest_pause", self.longest_pause, 0.5, 86400.0)
        require(1 <= self.sighting_frames[0] <= self.sighting_frames[1], "sighting_frames", self.sighting_frames,
                "two rising counts from 1")  # fmt: skip


@dataclass(frozen=True)
class PatrolFrame:
    """One picture of the stream."""

    index: int
    stamp: float
    """Seconds."""
    picture: NDArray[np.uint8]
    """RGB, [size, size, 3]."""


@dataclass(frozen=True)
class _Move:
    """A pan of the camera, or a move into the next room."""

    first: int
    last: int
    speed: int
    """Native pixels per frame; 0 for a move into another room, whose edge slides across the picture."""
    enters: str | None
    """The next room; None for a pan."""


class PatrolWorld:
    """A stream of the patrol world. Only its list of camera moves grows with its length."""

    def __init__(self, settings: PatrolSettings) -> None:
        """Plan sightings, moves and pauses; pictures are drawn on demand."""
        self.settings = settings
        random = np.random.default_rng([20251, settings.seed])
        self._scale = settings.size // NATIVE_SIZE
        self._gain = float(random.uniform(0.85, 1.1))
        self._offset = int(random.integers(PANORAMA_WIDTH))
        spans = _plan_sightings(settings, random)
        self._moves = _plan_moves(settings, random, spans)
        first_room = str(random.choice(ROOMS))
        self._moves = _choose_rooms(self._moves, first_room, random)
        self._move_firsts = np.array([move.first for move in self._moves], np.int64)
        ways = [move.speed * (move.last - move.first + 1) for move in self._moves]
        self._ways = np.concatenate([[0], np.cumsum(ways, dtype=np.int64)])
        self._rooms = [first_room]
        """The first room, and the room after each move."""
        for move in self._moves:
            self._rooms.append(move.enters or self._rooms[-1])
        self.sightings: tuple[Sighting, ...] = self._describe(spans, random)
        self._sighting_firsts = np.array([sighting.first for sighting in self.sightings], np.int64)
        self._pause_frames, self._pauses = _plan_pauses(settings, random, spans)
        self._jitter = random.uniform(-0.1, 0.1, 64) / settings.rate_hz
        self._jitter[0] = 0.0

    def __len__(self) -> int:
        """Return the number of frames."""
        return self.settings.frames

    def __iter__(self) -> Iterator[PatrolFrame]:
        """Yield every frame in order, drawing one at a time."""
        for index in range(self.settings.frames):
            yield self.frame(index)

    def frame(self, index: int) -> PatrolFrame:
        """Draw frame ``index``."""
        return PatrolFrame(index, self.stamp(index), self.picture(index))

    def stamp(self, index: int) -> float:
        """Stamp of frame ``index``, seconds: nominal time, jitter of a tenth of a period, and the pauses before it."""
        pauses = self._pauses[np.searchsorted(self._pause_frames, index)]
        return float(self.settings.start + index / self.settings.rate_hz + self._jitter[index % 64] + pauses)

    def room(self, index: int) -> str:
        """Name of the room in frame ``index``; between two rooms, the name of the previous one."""
        done = int(np.searchsorted(self._move_firsts, index, side="right"))
        if done and self._moves[done - 1].last >= index:
            done -= 1
        return self._rooms[done]

    def sighting(self, index: int) -> Sighting | None:
        """Return the sighting in view in frame ``index``, or None."""
        done = int(np.searchsorted(self._sighting_firsts, index, side="right"))
        if done and self.sightings[done - 1].last >= index:
            return self.sightings[done - 1]
        return None

    def picture(self, index: int) -> NDArray[np.uint8]:
        """RGB picture of frame ``index``: uint8 [size, size, 3]."""
        size = self.settings.size
        scene = self._background(index).astype(np.float32) * self._gain
        sighting = self.sighting(index)
        if sighting is not None:
            self._place(scene, sighting)
        if self.settings.noise:
            length = size * size * 3
            key = (index * 2654435761 + self.settings.seed * 40503 + 12345) % (_NOISE_LENGTH - min(length, 9408))
            scene += self.settings.noise * _noise(key, length).reshape(size, size, 3)
        return np.clip(scene, 0, 255).astype(np.uint8)

    def pose(self, index: int) -> Pose:
        """Pose of the robot's base, and of its camera, in the map when frame ``index`` was taken.

        The camera is mounted at the origin of the base and looks along its x axis.
        """
        return self.pose_at(self.stamp(index))

    def frame_pose(self, index: int) -> FramePose:
        """Pose of base and camera as a memory takes it with frame ``index``."""
        pose = self.pose(index)
        return FramePose(MAP, pose, pose)

    def pose_at(self, stamp: float) -> Pose:
        """Pose of the base in the map at any time; beyond PATH_MARGIN before and after the stream, it stands still.

        Between two frames it turns evenly.
        """
        frames = range(len(self))
        index = min(max(bisect_right(frames, stamp, key=self.stamp) - 1, 0), len(self) - 1)
        after = min(index + 1, len(self) - 1)
        first, last = self.stamp(index), self.stamp(after)
        share = min(max((stamp - first) / (last - first), 0.0), 1.0) if after > index else 0.0
        way = (1 - share) * self._way(index) + share * self._way(after)
        yaw = -2 * math.pi * ((self._offset + way) / PANORAMA_WIDTH % 1.0)
        return Pose.from_euler((*self._path.position(stamp), 0.0), 0.0, 0.0, yaw)

    def questions(self, count: int, at: int | None = None, seed: int = 0, kinds: Sequence[str] = ()) -> list[Question]:
        """Return up to ``count`` questions as asked right after frame ``at`` (default: the last frame).

        :param kinds: take turns in this order; default: every kind (questions.KINDS), in random order. A kind that does
            not apply to the stream so far is skipped. "place" asks where the robot was; it is not among KINDS.
        """
        at = len(self) - 1 if at is None else at
        return make_questions(self, count, at, np.random.default_rng([20252, self.settings.seed, at, seed]), kinds)

    @cached_property
    def _path(self) -> PatrolPath:
        """The path, from its own random numbers, so that pictures and questions do not depend on it."""
        passages = [
            Passage(self.stamp(move.first - 1), self.stamp(move.last + 1), move.enters)
            for move in self._moves
            if move.enters is not None
        ]
        start, end = self.stamp(0) - PATH_MARGIN, self.stamp(len(self) - 1) + PATH_MARGIN
        return PatrolPath(self._rooms[0], passages, start, end, np.random.default_rng([20261, self.settings.seed]))

    def _way(self, index: int) -> int:
        """How far the camera has panned in frame ``index``, native pixels to the right."""
        done = int(np.searchsorted(self._move_firsts, index, side="right"))
        if done and self._moves[done - 1].last >= index:
            move = self._moves[done - 1]
            return int(self._ways[done - 1]) + move.speed * (index - move.first + 1)
        return int(self._ways[done])

    def _background(self, index: int) -> NDArray[np.uint8]:
        """The part of the panorama in view; between two rooms, the next room slides over the previous one."""
        done = int(np.searchsorted(self._move_firsts, index, side="right"))
        way, entering = self._way(index), None
        if done and self._moves[done - 1].last >= index:
            done -= 1
            entering = self._moves[done]
        view = self._view(self._rooms[done], way)
        if entering is not None and entering.enters is not None:
            share = (index - entering.first + 1) / (entering.last - entering.first + 2)
            edge = self._scale * round(NATIVE_SIZE * share)
            view = view.copy()
            view[:, view.shape[1] - edge :] = self._view(entering.enters, way)[:, :edge]
        return view

    def _view(self, room: str, way: int) -> NDArray[np.uint8]:
        scenery = panorama(room, self._scale)
        left = (self._offset + way) % PANORAMA_WIDTH * self._scale
        right = left + self.settings.size
        if right <= scenery.shape[1]:
            return scenery[:, left:right]
        return np.concatenate([scenery[:, left:], scenery[:, : right - scenery.shape[1]]], axis=1)

    def _place(self, scene: NDArray[np.float32], sighting: Sighting) -> None:
        """Draw the objects into the scene, clipped at its edges."""
        scale, side = self._scale, QUADRANT * self._scale
        place = PLACES.index(sighting.place)
        top = (place // 2) * side + sighting.shift[1] * scale
        left = (place % 2) * side + sighting.shift[0] * scale
        mask = object_mask(sighting.shape, sighting.number, scale)
        above, before = max(0, -top), max(0, -left)
        mask = mask[above : self.settings.size - top, before : self.settings.size - left, None]
        part = scene[top + above : top + above + mask.shape[0], left + before : left + before + mask.shape[1]]
        part += mask * (np.asarray(COLOURS[sighting.colour], np.float32) - part)

    def _describe(self, spans: list[tuple[int, int]], random: np.random.Generator) -> tuple[Sighting, ...]:
        """Choose a distinct shape, a colour, a place and a number for each span of frames, and look up its room."""
        shapes = random.permutation(len(SHAPES))
        sightings = []
        for (first, last), shape in zip(spans, shapes, strict=False):
            number = int(random.choice(len(NUMBERS), p=(0.4, 0.3, 0.3))) + 1
            shift = (int(random.integers(-2, 3)), int(random.integers(-2, 3)))
            colour, place = str(random.choice(list(COLOURS))), str(random.choice(PLACES))
            sightings.append(Sighting(SHAPES[shape], colour, place, number, self.room(first), first, last, shift))
        return tuple(sightings)


@cache
def _noise_buffer() -> NDArray[np.float32]:
    return np.random.default_rng(97).standard_normal(_NOISE_LENGTH).astype(np.float32)


def _noise(key: int, length: int) -> NDArray[np.float32]:
    """Standard normal noise [length] from a fixed circular buffer, read from offset ``key``."""
    if key + length <= _NOISE_LENGTH:
        return _noise_buffer()[key : key + length]
    return np.take(_noise_buffer(), np.arange(key, key + length), mode="wrap")


def _plan_sightings(settings: PatrolSettings, random: np.random.Generator) -> list[tuple[int, int]]:
    """First and last frame of every sighting, in order and separated by a gap."""
    gap = max(1, round(0.75 * settings.rate_hz))
    low, high = settings.sighting_frames
    lengths: list[int] = []
    room = settings.frames
    for _ in range(settings.objects):
        length = max(int(random.integers(low, high + 1)), round(random.uniform(0.5, 1.5) * settings.rate_hz))
        if not lengths and length > room:
            length = room
        if length + (gap if lengths else 0) > room:
            break
        room -= length + (gap if lengths else 0)
        lengths.append(length)
    if not lengths:
        return []
    ends_in_view = random.random() < settings.ends_in_view
    parts = len(lengths) + (0 if ends_in_view else 1)
    # The free frames before, between and after the sightings: mostly equal shares, the rest random.
    even = int(_EVEN_SHARE * room) // parts
    cuts = np.sort(random.integers(0, room - even * parts + 1, parts - 1))
    extra = even + np.diff(np.concatenate([[0], cuts, [room - even * parts]]))
    spans, at = [], 0
    for index, length in enumerate(lengths):
        at += int(extra[index]) + (gap if index else 0)
        spans.append((at, at + length - 1))
        at += length
    return spans


def _empty_stretches(settings: PatrolSettings, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """First and last frames of the stretches without a sighting."""
    edges = [-1, *(edge for span in spans for edge in span), settings.frames]
    pairs = [(edges[i] + 1, edges[i + 1] - 1) for i in range(0, len(edges), 2)]
    return [(first, last) for first, last in pairs if last >= first]


def _plan_moves(settings: PatrolSettings, random: np.random.Generator, spans: list[tuple[int, int]]) -> list[_Move]:
    """Camera moves in the stretches without a sighting; the camera stands still in the first and the last frame."""
    period = max(4, round(4.0 * settings.rate_hz))
    moves = []
    for first, last in _empty_stretches(settings, spans):
        last = min(last, settings.frames - 2)
        at = max(first, 1) + int(random.integers(0, period))
        while at <= last:
            walks = random.random() < 0.5
            length = max(1, round(random.uniform(0.5, 2.0) * settings.rate_hz))
            end = min(at + length - 1, last)
            speed = int(random.choice((-1, 1))) * max(1, round(random.uniform(4, 24) / settings.rate_hz))
            moves.append(_Move(at, end, 0 if walks else speed, "" if walks else None))
            at = end + 1 + int(random.integers(period // 2, 2 * period))
    return moves


def _choose_rooms(moves: list[_Move], room: str, random: np.random.Generator) -> list[_Move]:
    """Choose the next room of every move into another room."""
    chosen = []
    for move in moves:
        if move.enters is not None:
            room = str(random.choice([other for other in ROOMS if other != room]))
            move = replace(move, enters=room)
        chosen.append(move)
    return chosen


def _plan_pauses(
    settings: PatrolSettings, random: np.random.Generator, spans: list[tuple[int, int]]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Frames that are followed by a pause, and the total seconds of pauses before each of them and after the last."""
    frames = []
    for first, last in _empty_stretches(settings, spans):
        count = int(random.binomial(last - first + 1, settings.pause_share)) if settings.pause_share else 0
        if count:
            frames.append(np.unique(random.integers(first, last + 1, count)))
    if not frames:
        return np.zeros(0, np.int64), np.zeros(1)
    at = np.concatenate(frames)
    lost = np.exp(random.uniform(np.log(0.5), np.log(settings.longest_pause), len(at)))
    return at, np.concatenate([[0.0], np.cumsum(lost)])
