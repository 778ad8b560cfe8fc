# SPDX-License-Identifier: Apache-2.0
"""Train the tiny model: ``python -m training.train --run build/training --export ros_kvstream/models/tiny``.

Uses one thread, continues from the last checkpoint in the run folder and writes a log there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Event

import numpy as np
import torch
from transformers import Qwen2_5_VLForConditionalGeneration

from ros_kvstream.patrol.questions import KINDS, Question
from training.batch import ChatLayout, training_batch
from training.checkpoint_files import make_config, make_tokenizer, save
from training.forward import loss_and_right
from training.settings import STAGES, TrainingSettings
from training.sight import learn_to_see


@dataclass
class Progress:
    """State of the training; saved with every checkpoint."""

    step: int = 0
    stage: int = 0
    stage_began: int = 0
    seconds: float = 0.0
    """Time spent training, all sessions together."""
    right: dict[str, float] = field(default_factory=dict)
    """Running accuracy per kind at the current stage."""
    loss: float = 3.0
    lessons: float = 3.0

    def note(self, kind: str, accuracy: float, count: int) -> None:
        """Fold the accuracy of ``count`` questions into the running one (memory of about 100 questions)."""
        share = min(1.0, count / 100)
        self.right[kind] = self.right.get(kind, 0.0) * (1 - share) + accuracy * share


class Trainer:
    """Model, optimizer and progress of one run folder."""

    def __init__(self, settings: TrainingSettings, run: Path) -> None:
        """Start a new training, or continue from the checkpoint in ``run``."""
        self.settings, self.run = settings, run
        tokenizer = make_tokenizer()
        self.layout = ChatLayout(tokenizer)
        torch.manual_seed(settings.seed)
        self.model = Qwen2_5_VLForConditionalGeneration(make_config(len(tokenizer)))
        decayed = [weight for weight in self.model.parameters() if weight.dim() > 1]
        others = [weight for weight in self.model.parameters() if weight.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.98))
        self.progress = Progress()
        if (run / "checkpoint.pt").exists():
            state = torch.load(run / "checkpoint.pt", weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.progress = Progress(**state["progress"])

    def learn_to_see(self, log: Callable[[str], None]) -> None:
        """Run the first lesson once; an interrupted one starts again."""
        if self.progress.step == 0:
            begun = time.monotonic()
            learn_to_see(self.model, self.settings.seed, self.settings.sight_steps, log)
            self.progress.seconds += time.monotonic() - begun

    def learning_rate(self) -> float:
        """Warm-up, then a cosine down to a twentieth."""
        step, settings = self.progress.step, self.settings
        if step < settings.warm_up:
            return settings.learning_rate * (step + 1) / settings.warm_up
        share = min(1.0, (step - settings.warm_up) / (settings.steps - settings.warm_up))
        return settings.learning_rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * share)))

    def kind_weights(self) -> dict[str, float]:
        """Weights of the kinds: the lower the accuracy, the more questions."""
        return {kind: 0.15 + 1.0 - self.progress.right.get(kind, 0.0) for kind in KINDS}

    def choose_stage(self) -> int:
        """Mostly the current stage, else one before it, the later the likelier."""
        random = np.random.default_rng([20254, self.settings.seed, self.progress.step])
        if self.progress.stage == 0 or random.random() < self.settings.current_share:
            return self.progress.stage
        return int(max(random.integers(0, self.progress.stage, 2)))

    def step(self) -> None:
        """One optimizer step."""
        begun = time.monotonic()
        progress, index = self.progress, self.choose_stage()
        key = (self.settings.seed, progress.step)
        batch = training_batch(self.layout, STAGES[index], self.kind_weights(), self.settings.unknown_share, key)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate()
        loss, lessons, right = loss_and_right(self.model, batch)
        self.optimizer.zero_grad(set_to_none=True)
        (loss + self.settings.lesson_weight * lessons).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self.optimizer.step()
        progress.step += 1
        progress.seconds += time.monotonic() - begun
        if index == progress.stage:
            progress.loss += 0.02 * (float(loss.detach()) - progress.loss)
            progress.lessons += 0.02 * (float(lessons.detach()) - progress.lessons)
            self._score(batch.asked, right)
        if self._passed():
            progress.stage, progress.stage_began, progress.right = progress.stage + 1, progress.step, {}

    def _score(self, asked: tuple[tuple[Question, ...], ...], right: torch.Tensor) -> None:
        outcomes: dict[str, list[bool]] = {}
        for items, marks in zip(asked, right.tolist(), strict=True):
            for question, mark in zip(items, marks, strict=True):
                outcomes.setdefault(question.kind, []).append(mark)
        for kind, marks in outcomes.items():
            self.progress.note(kind, sum(marks) / len(marks), len(marks))

    def _passed(self) -> bool:
        progress, settings = self.progress, self.settings
        if progress.stage + 1 == len(STAGES) or progress.step - progress.stage_began < 30:
            return False
        marks = [mark for kind, mark in progress.right.items() if kind != "unknown"]
        early = STAGES[progress.stage].frames < 16
        return sum(marks) >= len(marks) * (settings.early_pass_mark if early else settings.pass_mark) > 0

    def save(self) -> None:
        """Write the checkpoint; an interruption leaves the one before."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                 "progress": asdict(self.progress), "settings": asdict(self.settings)}  # fmt: skip
        torch.save(state, self.run / "checkpoint.tmp")
        os.replace(self.run / "checkpoint.tmp", self.run / "checkpoint.pt")

    def facts(self) -> dict[str, object]:
        """What the model card says of the training; a stage counts after 300 steps in it."""
        progress = self.progress
        stage = progress.stage - (progress.step - progress.stage_began < 300 and progress.stage > 0)
        return {"longest_frames": STAGES[stage].frames, "objects": STAGES[stage].objects, "steps": progress.step,
                "minutes": round(progress.seconds / 60, 1), "seed": self.settings.seed}  # fmt: skip

    def report(self) -> str:
        """One line for the log."""
        progress = self.progress
        stage = STAGES[progress.stage]
        marks = " ".join(f"{kind} {progress.right.get(kind, 0.0):.2f}" for kind in (*KINDS, "unknown"))
        return (
            f"step {progress.step} {progress.seconds / 60:.1f} min, {stage.frames} frames {stage.objects} objects, "
            f"loss {progress.loss:.3f}, lessons {progress.lessons:.3f}, lr {self.learning_rate():.1e} | {marks}"
        )


def export(trainer: Trainer, folder: Path) -> None:
    """Write the model's folder file by file, each replaced at once, so that readers never see half a file."""
    fresh = folder.with_name(folder.name + ".fresh")
    save(trainer.model, fresh)
    (fresh / "training.json").write_text(json.dumps(trainer.facts(), indent=2) + "\n")
    folder.mkdir(parents=True, exist_ok=True)
    for file in fresh.iterdir():
        os.replace(file, folder / file.name)
    fresh.rmdir()


def main(arguments: list[str] | None = None) -> None:
    """Train until the last step, with checkpoints and exports on the way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("build/training"), help="folder of checkpoint and log")
    parser.add_argument("--export", type=Path, help="folder of the finished model, refreshed on the way")
    parser.add_argument("--steps", type=int, default=TrainingSettings.steps)
    parser.add_argument("--warm-up", type=int, default=TrainingSettings.warm_up)
    parser.add_argument("--sight-steps", type=int, default=TrainingSettings.sight_steps)
    parser.add_argument("--seed", type=int, default=TrainingSettings.seed)
    parser.add_argument("--learning-rate", type=float, default=TrainingSettings.learning_rate)
    parser.add_argument("--save-minutes", type=float, default=3.0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    options.run.mkdir(parents=True, exist_ok=True)
    settings = replace(
        TrainingSettings(), seed=options.seed, steps=options.steps, sight_steps=options.sight_steps,
        warm_up=options.warm_up, learning_rate=options.learning_rate,
    )  # fmt: skip
    trainer = Trainer(settings, options.run)
    with (options.run / "log.txt").open("a") as log:
        print(json.dumps(asdict(settings)), file=log, flush=True)
        trainer.learn_to_see(lambda line: print(line, file=log, flush=True))
        saved = time.monotonic()
        stopped = Event()
        signal.signal(signal.SIGTERM, lambda *_: stopped.set())
        while trainer.progress.step < settings.steps and not stopped.is_set():
            trainer.step()
            if trainer.progress.step % 50 == 0:
                print(trainer.report(), file=log, flush=True)
            if time.monotonic() - saved > 60 * options.save_minutes:
                trainer.save()
                if options.export:
                    export(trainer, options.export)
                saved = time.monotonic()
        trainer.save()
        if options.export:
            export(trainer, options.export)


if __name__ == "__main__":
    main()
