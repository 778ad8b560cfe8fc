# SPDX-License-Identifier: Apache-2.0
"""Poses of robot and camera from tf: looked up at the image's stamp, and checked for gaps and jumps.

tf2 interpolates over gaps of any length and through jumps of the localization. The pose of the base is therefore also
sampled whenever a newer one is known, and the samples around a frame decide whether its pose can be used.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.time import Time

from ros_kvstream.errors import KvStreamError, PoseError
from ros_kvstream.node.messages import NANOSECONDS, to_seconds
from ros_kvstream.node.pose_buffer import RESTART_SECONDS, PoseBuffer, PoseGap, PoseSample
from ros_kvstream.node.pose_source import DELAYS, NoPose, PoseQuery, RobotPose
from ros_kvstream.node.settings import PoseSettings
from ros_kvstream.poses import Pose

AUTHORITY = "kvstream"
"""Name under which received transforms are stored."""
_ERRORS = {"TransformException", "LookupException", "ConnectivityException", "ExtrapolationException",
           "InvalidArgumentException"}  # fmt: skip
"""Names of tf2's errors: their module can be imported only where tf2 is installed."""


class TfPoses:
    """Poses of base and camera in ``pose.frame``."""

    def __init__(self, settings: PoseSettings, buffer: Any = None) -> None:
        """Make the buffer of transforms; raise KvStreamError where tf2_ros is not installed.

        :param buffer: one with the methods of tf2_ros.Buffer, to be used in place of a new one.
        """
        self._settings = settings
        self._transforms = tf_buffer(settings) if buffer is None else buffer
        self._lock = threading.Lock()
        self._samples = PoseBuffer(settings)
        self._sampled = 0
        """Time of the newest sample, nanoseconds."""
        self._unusable = ""
        """Why a transform of the base could not be used."""
        self._newest: dict[str, float] = {}
        """Newest stamp by child frame, seconds."""
        self._delays: deque[float] = deque(maxlen=DELAYS)
        self._listener: Any = None
        self._received: Callable[[], None] = lambda: None
        self._now: Callable[[], float] = lambda: 0.0

    # -- transforms, in the executor's thread -----------------------------------------------------------------------

    def subscribe(self, node: Node, received: Callable[[], None]) -> None:
        """Listen to /tf and /tf_static."""
        from tf2_ros import TransformListener

        poses = self

        class Listener(TransformListener):
            """Stores transforms and samples the pose of the base after each message."""

            def callback(self, data: Any) -> None:
                poses.store(data.transforms)

        self._received = received
        self._now = lambda: to_seconds(node.get_clock().now().to_msg())
        self._listener = Listener(self._transforms, node)

    def unsubscribe(self) -> None:
        """Destroy the subscriptions."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.unregister()

    def store(self, transforms: Iterable[Any]) -> None:
        """Store received transforms and sample the pose of the base; begin anew when their stamps go back far."""
        for transform in transforms:
            stamp, child = to_seconds(transform.header.stamp), transform.child_frame_id
            if stamp < self._newest.get(child, stamp) - RESTART_SECONDS:  # tf2 would drop all until then
                self._restart()
            self._newest[child] = max(stamp, self._newest.get(child, stamp))
            self._transforms.set_transform(transform, AUTHORITY)
        if self._sample():
            self._received()

    def _restart(self) -> None:
        self._transforms.clear()
        self._newest.clear()
        with self._lock:
            self._samples.clear()
            self._sampled = 0

    def _sample(self) -> bool:
        """Take the pose of the base where a newer one is known than the last sample; whether there was one."""
        frame, base = self._settings.frame, self._settings.base_frame
        newest = self._newest_common(base)
        if newest is None or newest <= self._sampled:
            return False
        pose, invalid = None, ""
        try:
            pose = self._look_up(base, newest)
        except PoseError as error:
            invalid = f"the transform from {frame!r} to {base!r} cannot be used: {error}"
        sample = PoseSample(_seconds(newest), frame, pose)
        with self._lock:
            self._unusable = invalid
            self._sampled = newest
            self._samples.add(sample)
            self._delays.append(self._now() - sample.stamp)
        return True

    # -- from any thread --------------------------------------------------------------------------------------------

    def at(self, query: PoseQuery, *, final: bool) -> RobotPose | NoPose | None:
        """Poses of base and camera at the image's stamp; None while transforms may still arrive."""
        if refusal := self._refusal(query):
            return refusal
        with self._lock:
            found, reason = self._samples.at(query.stamp, final=final), self._unusable
        if found is None or found is PoseGap.MISSING:  # no samples: not connected (yet), or by static transforms only
            static = self._newest_common(self._settings.base_frame) == 0
            if found is None and not static:
                return None
            place = self._exact(query, final)
            return place if static or not isinstance(place, RobotPose) else NoPose(PoseGap.MISSING)
        if isinstance(found, PoseGap):
            return NoPose(found, reason if found is PoseGap.INVALID else "")
        return self._exact(query, final)

    def _exact(self, query: PoseQuery, final: bool) -> RobotPose | NoPose | None:
        """Look both poses up at exactly the stamp."""
        source = self._settings.base_frame
        try:
            base = self._look_up(source, query.nanoseconds)
            source = query.image_frame
            return RobotPose(self._settings.frame, base, self._look_up(source, query.nanoseconds))
        except PoseError as error:
            return NoPose(PoseGap.INVALID, f"the transform from {self._settings.frame!r} to {source!r} cannot be used: "
                          f"{error}")
        except Exception as error:
            if not is_tf_error(error):
                raise
            return self._gap(source, query, error) if final else None

    def _gap(self, source: str, query: PoseQuery, error: Exception) -> NoPose:
        """Tell a frame that tf knows at other times from one that it does not connect."""
        frame = self._settings.frame
        if is_tf_error(error, "ExtrapolationException"):
            late = query.nanoseconds - (self._newest_common(source) or 0) > self._settings.max_age_s * NANOSECONDS
            return NoPose(PoseGap.AGE if late else PoseGap.EXTRAPOLATION)
        where = "pose.base_frame" if source == self._settings.base_frame else f"the images of '{query.camera}'"
        return NoPose(PoseGap.TRANSFORM, f"tf does not connect {frame!r} (pose.frame) with {source!r} ({where}): "
                      f"{_first_line(error)}")

    def _refusal(self, query: PoseQuery) -> NoPose | None:
        """Refuse what tf2 would answer with a pose that is not the camera's."""
        frame_id, images = query.image_frame, f"images of camera '{query.camera}'"
        if not frame_id:
            return NoPose(PoseGap.TRANSFORM, f"{images} have no frame_id in their header, which tf needs; set it in "
                          "the camera's driver, or use pose.source topic")
        if frame_id[0] == "/" or "\0" in frame_id:
            return NoPose(PoseGap.TRANSFORM, f"{images} have the frame_id {frame_id!r}, which tf2 does not accept: it "
                          "must not begin with '/'")
        if frame_id == self._settings.frame:
            return NoPose(PoseGap.TRANSFORM, f"{images} have the frame_id {frame_id!r}, which is pose.frame itself; "
                          "set the frame of the camera in its driver")
        if not query.nanoseconds:  # tf2 takes it as "the newest transform"
            return NoPose(PoseGap.AGE, f"{images} have no stamp")
        return None

    def _newest_common(self, source: str) -> int | None:
        """Newest time at which a frame is known in ``pose.frame``, nanoseconds; 0 by static transforms only."""
        try:
            return int(self._transforms.get_latest_common_time(self._settings.frame, source).nanoseconds)
        except Exception as error:
            if not is_tf_error(error):
                raise
            return None

    def _look_up(self, source: str, nanoseconds: int) -> Pose:
        """Pose of a frame in ``pose.frame``; raises tf2's errors, and PoseError for values that cannot be used."""
        found = self._transforms.lookup_transform(self._settings.frame, source, Time(nanoseconds=nanoseconds))
        return Pose.from_message(found.transform.translation, found.transform.rotation)

    def describe(self) -> str:
        """Frames that are looked up."""
        return f"tf ({self._settings.frame} to {self._settings.base_frame})"

    def unusable(self) -> bool:
        """Never known in advance: transforms may come at any time."""
        return False

    def problem(self) -> str:
        """Describe why the base is not known."""
        frame, base = self._settings.frame, self._settings.base_frame
        try:
            self._transforms.get_latest_common_time(frame, base)
        except Exception as error:
            if not is_tf_error(error):
                raise
            return (f"tf does not connect {frame!r} (pose.frame) with {base!r} (pose.base_frame): "
                    f"{_first_line(error)}. Check `ros2 run tf2_tools view_frames`")
        return ""

    def delay(self) -> float | None:
        """The smallest delay of the last samples, seconds."""
        with self._lock:
            return min(self._delays, default=None)


def tf_buffer(settings: PoseSettings) -> Any:
    """Make a buffer of transforms that is not bound to a node; raise KvStreamError where tf2_ros is not installed."""
    try:
        from tf2_ros import Buffer
    except ImportError as error:
        raise KvStreamError(
            "pose.source = 'tf' needs the package tf2_ros, which is not installed: a ROS 2 distribution has it "
            "(ros-$ROS_DISTRO-tf2-ros-py), the wheels from PyPI do not. Use pose.source topic there.") from error
    return Buffer(cache_time=Duration(seconds=RESTART_SECONDS + settings.max_age_s))


def is_tf_error(error: Exception, *names: str) -> bool:
    """Whether an error is one of tf2's, or of these of its classes."""
    return not set(names or _ERRORS).isdisjoint(kind.__name__ for kind in type(error).__mro__)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200].rstrip(". ")


def _seconds(nanoseconds: int) -> float:
    """Seconds as ``to_seconds`` computes them from a stamp, to the bit."""
    whole, rest = divmod(nanoseconds, NANOSECONDS)
    return whole + rest / NANOSECONDS
