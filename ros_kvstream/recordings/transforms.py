# SPDX-License-Identifier: Apache-2.0
"""Transforms of /tf and /tf_static, composed along the tree at a stamp, without a ROS installation."""

from __future__ import annotations

from ros_kvstream.node.pose_buffer import PoseBuffer, PoseGap, PoseSample
from ros_kvstream.node.settings import PoseSettings
from ros_kvstream.poses import Pose

IDENTITY = Pose((0.0, 0.0, 0.0))


class TransformBuffer:
    """Newest transforms of every frame; bounded by those that a PoseBuffer keeps for each."""

    def __init__(self, settings: PoseSettings) -> None:
        self._settings = settings
        self._static: dict[str, PoseSample] = {}
        self._moving: dict[str, PoseBuffer] = {}

    def add(self, child: str, transform: PoseSample, *, static: bool = False) -> None:
        """Add the pose of a child frame in its parent, which is the sample's frame_id; one without a pose is ignored.

        A frame that has moved stays a moving one, as in tf2.
        """
        if transform.pose is None or not child or child == transform.frame_id:
            return
        if not static:
            self._static.pop(child, None)
            self._moving.setdefault(child, PoseBuffer(self._settings)).add(transform)
        elif child not in self._moving:
            self._static[child] = transform

    def lookup(self, target: str, source: str, stamp: float) -> Pose | PoseGap:
        """Pose of the frame ``source`` in the frame ``target``, one of its ancestors, at a stamp.

        :returns: TRANSFORM where they are not connected, or why a transform between them is unknown at the stamp.
        """
        found, frame, visited = IDENTITY, source, set[str]()
        while frame != target:
            if frame in visited:
                return PoseGap.TRANSFORM
            visited.add(frame)
            link: PoseSample | PoseGap | None = self._static.get(frame)
            if frame in self._moving:
                link = self._moving[frame].at(stamp, final=True)
            if link is None or isinstance(link, PoseGap):
                return link or PoseGap.TRANSFORM
            assert link.pose is not None
            found, frame = link.pose.compose(found), link.frame_id
        return found
