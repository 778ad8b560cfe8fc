# SPDX-License-Identifier: Apache-2.0
"""Curriculum and settings of a training run."""

from __future__ import annotations

from dataclasses import dataclass

from ros_kvstream.settings import require, require_finite


@dataclass(frozen=True)
class Stage:
    """One step of the curriculum: streams of this many frames and at most this many sightings."""

    frames: int
    objects: int
    streams: int
    """Streams in one optimizer step."""
    questions: int
    """Questions per stream."""


STAGES = (
    Stage(1, 1, 32, 6),
    Stage(4, 2, 24, 8),
    Stage(8, 3, 12, 14),
    Stage(16, 5, 6, 24),
    Stage(32, 7, 4, 28),
    Stage(64, 8, 2, 40),
    Stage(96, 8, 2, 40),
    Stage(192, 8, 1, 48),
)


@dataclass(frozen=True)
class TrainingSettings:
    """One training run; equal seeds give equal data."""

    seed: int = 1
    steps: int = 24000
    """Optimizer steps; the learning rate falls to a twentieth by a cosine over them."""
    sight_steps: int = 1500
    """Steps of the first lesson, the vision tower alone."""
    learning_rate: float = 2e-3
    lesson_weight: float = 0.3
    """Weight of the side lessons: visual tokens are to name what they show, and some heads to look at what a question
    names, at what holds its answer, and at what came before. Without them the model kept guessing for an hour."""
    warm_up: int = 200
    """Steps until the learning rate is reached."""
    weight_decay: float = 0.01
    clip: float = 1.0
    """Largest norm of the gradient."""
    current_share: float = 0.3
    """Share of steps at the current stage, the rest at those before it."""
    pass_mark: float = 0.84
    """Mean accuracy over the kinds at which the next stage begins, and ..."""
    early_pass_mark: float = 0.80
    """... in streams of fewer than 16 frames, where order is hard to learn and slow to matter."""
    unknown_share: float = 0.03
    """Share of questions that cannot be understood."""

    def __post_init__(self) -> None:
        require(self.steps > self.warm_up >= 0, "steps", self.steps, "more than warm_up")
        require_finite("learning_rate", self.learning_rate, 1e-6, 1.0)
        require_finite("clip", self.clip, 1e-3, 1e3)
        for name in ("current_share", "pass_mark", "early_pass_mark", "unknown_share"):
            require_finite(name, getattr(self, name), 0.0, 1.0)
