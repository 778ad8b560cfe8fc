"""What a soak does to a node, one fault after the other; each must be survived."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ros_kvstream.commands.soak_cameras import SoakCamera


class Bench(Protocol):
    """What a fault may act on."""

    cameras: list[SoakCamera]

    @property
    def now(self) -> float:
        """Seconds of the soak's clock."""

    def ask(self, question: str, *, expected: bool = True, **limits: Any) -> None:
        """Ask without waiting; ``expected``: whether an answer should come."""

    def change_state(self, transition: str) -> None:
        """Ask for a lifecycle transition and wait for it."""

    def set_parameter(self, name: str, value: float) -> None:
        """Set a parameter and wait for it."""

    def save_and_load(self) -> None:
        """Save the memory, forget everything, load it again."""

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something in a while."""


@dataclass
class Fault:
    """One kind of fault and how often it was injected and survived."""

    name: str
    inject: Callable[[Bench], None]
    injected: int = 0
    survived: int = 0
    reasons: list[str] = field(default_factory=list)
    """Why it was not survived, each time it was not."""


def _each(bench: Bench, damage: Callable[[Any], None]) -> None:
    for camera in bench.cameras:
        camera.publish(bench.now, damage)


def _unknown_encoding(message: Any) -> None:
    if hasattr(message, "encoding"):
        message.encoding = "nonsense8"
    else:
        message.format = "h264"
        message.data[:4] = type(message.data)("B", b"\0\0\0\1")


def _cut_short(message: Any) -> None:
    del message.data[len(message.data) // 2 :]


def _empty(message: Any) -> None:
    message.data = type(message.data)("B")


def _no_stamp(message: Any) -> None:
    message.header.stamp.sec, message.header.stamp.nanosec = 0, 0


def _burst(bench: Bench) -> None:
    for _ in range(20):
        _each(bench, lambda _: None)


def _jump(seconds: float) -> Callable[[Bench], None]:
    def inject(bench: Bench) -> None:
        for camera in bench.cameras:
            camera.offset += seconds

    return inject


def _other_size(bench: Bench) -> None:
    camera = bench.cameras[0]
    camera.scale = 1.5
    bench.later(3.0, lambda: setattr(camera, "scale", 1.0))


def _silence(bench: Bench) -> None:
    bench.cameras[-1].quiet_until = bench.now + 4.0


def _renew(bench: Bench) -> None:
    for camera in bench.cameras:
        camera.renew()


def _bad_questions(bench: Bench) -> None:
    bench.ask("", expected=False)
    bench.ask("what is there?", expected=False, max_new_tokens=-5)
    bench.ask("what is there?", expected=False, camera="nowhere")
    bench.ask("{0} %s %n \\x00 ../../etc/passwd", expected=False, timeout_s=float("nan"))


def _too_little_time(bench: Bench) -> None:
    bench.ask("what is there?", expected=False, timeout_s=1e-6)


def _budget(bench: Bench) -> None:
    for share in (0.6, 1.0):
        bench.set_parameter("memory.budget_mib", share)


def _round(bench: Bench) -> None:
    bench.change_state("deactivate")
    bench.change_state("activate")


def all_faults() -> list[Fault]:
    """Every kind of fault, in the order of injection."""
    return [
        Fault("unknown encoding", lambda bench: _each(bench, _unknown_encoding)),
        Fault("cut short", lambda bench: _each(bench, _cut_short)),
        Fault("bad questions", _bad_questions),
        Fault("empty image", lambda bench: _each(bench, _empty)),
        Fault("clock set back", _jump(-30.0)),
        Fault("burst of frames", _burst),
        Fault("no stamp", lambda bench: _each(bench, _no_stamp)),
        Fault("other QoS", _renew),
        Fault("other size", _other_size),
        Fault("budget changed", _budget),
        Fault("clock set forward", _jump(3600.0)),
        Fault("saved and loaded", lambda bench: bench.save_and_load()),
        Fault("no time to answer", _too_little_time),
        Fault("camera silent", _silence),
        Fault("deactivated", _round),
    ]
