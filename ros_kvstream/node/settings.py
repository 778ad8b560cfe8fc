# SPDX-License-Identifier: Apache-2.0
"""Settings of the node itself, declared as those of a VideoMemory are (``ros_kvstream.settings``)."""

from __future__ import annotations

from dataclasses import dataclass, field

from ros_kvstream.errors import PoseError, SettingsError
from ros_kvstream.poses import SEGMENT_BYTES, Pose
from ros_kvstream.settings import Change, check_fields, require, setting

MAX_CAMERAS = 8
FRAME_ID_BYTES = 80
"""Longest frame_id of poses in UTF-8 bytes; the name of the map may reduce it, see ``PoseSettings.frame_id_bytes``."""
MAP_NAME_BYTES = 48
"""Longest ``pose.map_name`` in UTF-8 bytes."""


@dataclass(frozen=True)
class CameraSettings:
    """Where the images of one camera come from; parameters ``<camera>.topic``, ``.transport``, ...."""

    name: str
    topic: str = setting(
        "image", "Base topic of the camera's images; '/compressed' is added to it for that transport. Default: 'image' "
        "for a single camera, to be remapped, and '<camera>/image' for several.")
    transport: str = setting(
        "raw", "raw subscribes to sensor_msgs/Image, compressed to sensor_msgs/CompressedImage on <topic>/compressed. "
        "compressed needs less bandwidth and costs time for decoding.", choices=("raw", "compressed"))
    share: float = setting(
        0.0, "Share of the memory reserved for this camera; slots that it does not use are lent to others. 0 takes an "
        "equal part of what the others leave. The shares of all cameras together are at most 1.",
        0.0, 1.0, change=Change.RUNNING)
    range: str = setting(
        "0 65535", "Values of 16-bit pictures (mono16, rgb16, bayer_*16, 16-bit PNG) that become black and white: two "
        "numbers such as '0 1023' for 10-bit infrared, or auto for those of each image without the lowest and highest "
        "0.1 %. auto follows any camera, and the brightness of a scene then changes with its extremes.")
    pose: str = setting(
        "", "Mounting of the camera for pose.source topic: x y z roll pitch yaw of the camera in the robot's base "
        "frame, in metres and radians about fixed axes (REP-103), such as '0.2 0 0.5 0 0 1.57'. Empty: at the base, "
        "with the same orientation. With pose.source tf the mounting comes from tf.")

    def __post_init__(self) -> None:
        check_fields(self, self.name)
        value_range(self)
        mounting(self)


def value_range(camera: CameraSettings) -> tuple[int, int] | None:
    """Return (low, high) of the camera's 16-bit values, None for auto; raise SettingsError for anything else."""
    if camera.range.strip() == "auto":
        return None
    parts = camera.range.replace(",", " ").split()
    limits = [int(part) for part in parts if part.isdecimal()]
    require(len(limits) == len(parts) == 2 and limits[0] < limits[1] <= 65535, f"{camera.name}.range", camera.range,
            "auto, or two whole numbers low < high from 0 to 65535, such as '0 1023'")
    return limits[0], limits[1]


def mounting(camera: CameraSettings) -> Pose:
    """Return the camera's pose in the base frame; raise SettingsError unless it is six finite numbers or empty."""
    parts = camera.pose.replace(",", " ").split()
    try:
        numbers = [float(part) for part in parts]
        if len(numbers) in (0, 6):
            return Pose.from_euler(numbers[:3], *numbers[3:]) if numbers else Pose((0.0, 0.0, 0.0))
    except (ValueError, PoseError):  # a PoseError for infinite numbers and NaN
        pass
    raise SettingsError(f"{camera.name}.pose = {camera.pose!r}: must be empty or six finite numbers x y z roll pitch "
                        "yaw, in metres and radians, such as '0.2 0 0.5 0 0 1.57'.")


@dataclass(frozen=True)
class MemoryFileSettings:
    """Where memories are saved to and restored from."""

    directory: str = setting(
        "", "Folder on the node's machine for ~/save and ~/load. Empty disables both, because every peer on the "
        "network can call them; file names are restricted to this folder.")
    restore: str = setting(
        "", "Name of a saved memory in memory.directory that configure loads. If the file does not exist, the memory "
        "starts empty; if it does not fit the settings, configure fails. Empty always starts with an empty memory.")


@dataclass(frozen=True)
class IngestSettings:
    """How frames get from the cameras to the memory."""

    queue_frames: int = setting(
        2, "Frames per camera that may wait for the memory. When the queue is full, the oldest frame is dropped and "
        "counted (cause 'queue'). A longer queue absorbs bursts and delays the newest frame.", 1, 64)
    depth: str = setting(
        "refuse", "Depth images (16UC1, 32FC1): refuse drops them, grey renders them with near points bright, between "
        "ingest.depth_near and ingest.depth_far.", choices=("refuse", "grey"))
    depth_near: float = setting(0.3, "Depth in metres at and below which a pixel is white.", 0.0, 1e4)
    depth_far: float = setting(
        10.0, "Depth in metres at and beyond which a pixel is darkest; must be greater than ingest.depth_near.",
        0.0, 1e4)

    def __post_init__(self) -> None:
        check_fields(self, "ingest")
        if self.depth_near >= self.depth_far:
            raise SettingsError(f"ingest.depth_near = {self.depth_near:g}, ingest.depth_far = {self.depth_far:g}: "
                                "must be 0 <= near < far <= 10000 metres.")


@dataclass(frozen=True)
class PoseSettings:
    """Where the pose of each frame comes from, and when none is better than a wrong one."""

    source: str = setting(
        "none", "Source of the pose of each frame: none; topic (nav_msgs/Odometry, geometry_msgs/PoseStamped or "
        "PoseWithCovarianceStamped on pose.topic, interpolated at the frame's stamp); or tf (pose.frame to "
        "pose.base_frame and to the frame_id of the image, needs the package tf2_ros).",
        choices=("none", "topic", "tf"))
    topic: str = setting(
        "odom", "Topic of the robot's poses for pose.source topic; its type is found from its publisher.")
    frame: str = setting(
        "map", "Frame of the poses for pose.source tf. With topic, the header of the messages names the frame.")
    base_frame: str = setting(
        "base_link", "Frame of the robot's base for pose.source tf; goals of answers are poses of it.")
    map_name: str = setting(
        "", "Name of the map, such as 'warehouse_3'. Poses of different names, and without a name those of different "
        "runs, are never compared, since the origin of a map or of odometry may change. Set it where localization "
        "always uses the same map, so that places are known again after a restart.")
    max_age_s: float = setting(
        0.5, "Longest time in seconds between a frame and the poses before and after it. With a longer one the frame "
        "is remembered without a pose (cause 'age').", 0.001, 60.0)
    max_covariance: float = setting(
        1.0, "Largest variance of x and y in square metres. With a larger one the frame is remembered without a pose "
        "(cause 'covariance').", 0.0, 1e9)
    max_speed: float = setting(
        10.0, "Largest speed of the robot in metres per second. Poses that are further apart are a jump of the "
        "localization, and frames between them are remembered without a pose (cause 'jump').", 0.01, 1e4)

    def __post_init__(self) -> None:
        check_fields(self, "pose")
        name = self.map_name
        require(len(name.encode()) <= MAP_NAME_BYTES and name.isprintable() and "#" not in name, "pose.map_name", name,
                f"at most {MAP_NAME_BYTES} bytes of printable text without '#'")
        for field_name, frame in (("pose.frame", self.frame), ("pose.base_frame", self.base_frame)):
            require(0 < len(frame.encode()) <= self.frame_id_bytes and frame.isprintable() and frame[0] != "/",
                    field_name, frame, f"1 to {self.frame_id_bytes} bytes of printable text without '/' in front")
        require(self.base_frame != self.frame, "pose.base_frame", self.base_frame,
                "another frame than pose.frame: the pose of the base is its pose in pose.frame")

    @property
    def frame_id_bytes(self) -> int:
        """Longest frame_id of poses in UTF-8 bytes, so that the archive can keep it together with the map's name."""
        return min(FRAME_ID_BYTES, SEGMENT_BYTES - 1 - len(self.map_name.encode()))


@dataclass(frozen=True)
class QuerySettings:
    """Limits of questions."""

    max_waiting: int = setting(
        3, "Largest number of questions that wait or are being answered; a further question is rejected as 'busy' at "
        "once.", 1, 64, change=Change.RUNNING)
    timeout_s: float = setting(
        60.0, "Longest time for an answer in seconds, including waiting, for queries that set no limit of their own. "
        "Generation then stops at the next token and the query fails.", 0.01, 86400.0, change=Change.RUNNING)
    min_confidence: float = setting(
        0.0, "Confidence below which an answer gets the verdict NOT_SEEN; its text stays. 0: never. "
        "docs/confidence.md shows which wrong answers a value finds.", 0.0, 1.0, change=Change.RUNNING)


@dataclass(frozen=True)
class FaultSettings:
    """Reaction to errors inside the memory."""

    action: str = setting(
        "continue", "Reaction to an error inside the memory: continue drops the frame or fails the question and goes "
        "on; deactivate leaves the active state after faults.limit errors, so that a supervisor can act.",
        choices=("continue", "deactivate"), change=Change.RUNNING)
    limit: int = setting(
        5, "Consecutive errors after which faults.action deactivate takes effect.", 1, 1000, change=Change.RUNNING)


@dataclass(frozen=True)
class DiagnosticsSettings:
    """Rate and thresholds of ~/stats and /diagnostics."""

    period_s: float = setting(
        1.0, "Time between two reports on ~/stats and /diagnostics, in seconds of the system clock, also when /clock "
        "stands still.", 0.05, 60.0, change=Change.RUNNING)
    no_image_s: float = setting(
        5.0, "Time without an image, in seconds, after which a camera is reported as WARN with the topic it waits for; "
        "after ten times as long it is STALE.", 0.1, 1e6, change=Change.RUNNING)
    image_age_s: float = setting(
        1.0, "Age of the newest frame by its header stamp, in seconds, above which WARN is reported.",
        0.001, 1e6, change=Change.RUNNING)
    drop_share: float = setting(
        0.5, "Share of the recent frames lost for any cause but the frame gate, above which WARN is reported.",
        0.0, 1.0, change=Change.RUNNING)


@dataclass(frozen=True)
class NodeSettings:
    """Everything of the node beside its memory."""

    cameras: tuple[str, ...] = setting(
        ("camera",), "Names of the cameras, 1 to 8. Each has the parameters <camera>.topic, <camera>.transport, "
        "<camera>.share, <camera>.range and <camera>.pose; questions and evidence refer to cameras by these names.")
    memory: MemoryFileSettings = field(default_factory=MemoryFileSettings)
    ingest: IngestSettings = field(default_factory=IngestSettings)
    pose: PoseSettings = field(default_factory=PoseSettings)
    query: QuerySettings = field(default_factory=QuerySettings)
    faults: FaultSettings = field(default_factory=FaultSettings)
    diagnostics: DiagnosticsSettings = field(default_factory=DiagnosticsSettings)
    autostart: bool = setting(
        True, "Configure and activate at start. If that fails, the node stays unconfigured and reports the reason in "
        "/diagnostics.", change=Change.START)
