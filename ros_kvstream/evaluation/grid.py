"""The cells of an evaluation: every model x policy x budget x archive, and the settings of each."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ros_kvstream.errors import SettingsError
from ros_kvstream.evaluation.question_files import EvaluationQuestion
from ros_kvstream.settings import ModelSettings, StreamSettings, require, require_finite

if TYPE_CHECKING:
    from ros_kvstream.recordings.frame_sources import FrameSource

TINY_FOLDER = Path(__file__).parents[1] / "models" / "tiny"
Override = tuple[str, Any]
"""(dotted name of a setting, value), such as ("memory.keep_ratio", 0.5)."""


@dataclass(frozen=True)
class Cell:
    """One memory of the grid."""

    model: str = "tiny"
    policy: str = "infinipot_v"
    budget_mib: float = 0.0
    """Cap of the arena; 0 where ``budget_share`` says it."""
    budget_share: float = 0.0
    """Cap as a share of what the full cache of the whole stream takes, 0 - 1; room for the text comes on top."""
    archive_mib: float = 0.0
    """Cap of the archive; 0: none."""
    overrides: tuple[Override, ...] = ()
    """Other settings than the defaults, the same in every cell of a grid."""

    def __post_init__(self) -> None:
        from ros_kvstream.memory.policies import policy_names  # imports torch

        require(self.policy in policy_names(), "--policy", self.policy, "one of " + ", ".join(policy_names()))
        require_finite("--budget-mib", self.budget_mib, 0.0, 1 << 22)
        require_finite("--budget-share", self.budget_share, 0.0, 4.0)
        require_finite("--archive-mib", self.archive_mib, 0.0, 1 << 24)
        require((self.budget_mib > 0) != (self.budget_share > 0), "--budget-mib", self.budget_mib,
                "above 0, or --budget-share instead")  # fmt: skip

    @property
    def budget(self) -> str:
        """The budget for people."""
        return f"{self.budget_mib:g} MiB" if self.budget_mib else f"{100 * self.budget_share:g} %"

    @property
    def label(self) -> str:
        """The cell for people, without its model."""
        archive = f" + archive {self.archive_mib:g} MiB" if self.archive_mib else ""
        return f"{self.policy} {self.budget}{archive}"

    def data(self) -> dict[str, Any]:
        """As plain data, for results."""
        return {**dataclasses.asdict(self), "overrides": {name: value for name, value in self.overrides}}

    def settings(self, budget_mib: float) -> StreamSettings:
        """Settings of this cell's stream.

        :param budget_mib: the cap in MiB, also where the cell has it as a share.
        """
        base = StreamSettings(model=ModelSettings(path=self.model))
        chosen = [("memory.policy", self.policy), ("memory.budget_mib", budget_mib)]
        chosen += [("archive.budget_mib", self.archive_mib)]
        return override(base, [*chosen, *self.overrides])


def read_cell(data: Mapping[str, Any]) -> Cell:
    """A cell from what :meth:`Cell.data` wrote."""
    return Cell(**{**data, "overrides": tuple(sorted(data.get("overrides", {}).items()))})


def override(settings: StreamSettings, values: Sequence[Override]) -> StreamSettings:
    """Settings with some values replaced; all of them are checked together, the order does not matter.

    :raises SettingsError: for an unknown name, or a value that cannot work.
    """
    groups: dict[str, dict[str, Any]] = {}
    for name, value in values:
        group, _, key = name.partition(".")
        known = getattr(settings, group, None)
        if not dataclasses.is_dataclass(known) or key not in {item.name for item in dataclasses.fields(known)}:
            raise SettingsError(f"--set {name}: there is no such setting; a name is such as memory.keep_ratio")
        now = getattr(known, key)
        if isinstance(now, tuple) and isinstance(value, list):
            value = tuple(value)
        fits = isinstance(value, type(now)) or (isinstance(now, float) and isinstance(value, int))
        if not fits or isinstance(value, bool) != isinstance(now, bool):
            raise SettingsError(f"--set {name} = {value!r}: must be of the kind of {now!r}")
        groups.setdefault(group, {})[key] = value
    made = {group: dataclasses.replace(getattr(settings, group), **items) for group, items in groups.items()}
    return dataclasses.replace(settings, **made)


def make_grid(
    models: Sequence[str],
    policies: Sequence[str],
    budgets_mib: Sequence[float],
    archives_mib: Sequence[float],
    *,
    shares: Sequence[float] = (),
    overrides: Sequence[Override] = (),
) -> list[Cell]:
    """Every combination, in the order given: models outermost, so that each is loaded once.

    :param shares: budgets as shares of the full cache instead of ``budgets_mib``.
    """
    require(not (budgets_mib and shares), "--budget-share", list(shares), "given without --budget-mib")
    budgets = [(mib, 0.0) for mib in budgets_mib] or [(0.0, share) for share in shares]
    combinations = itertools.product(models, archives_mib, policies, budgets)
    cells = [
        Cell(model, policy, mib, share, archive, tuple(sorted(overrides)))
        for model, archive, policy, (mib, share) in combinations
    ]
    for cell in cells:
        cell.settings(cell.budget_mib or 1.0)  # refuses what cannot work before anything is run
    return list(dict.fromkeys(cells))


@dataclass(frozen=True)
class Episode:
    """One stream and what is asked about it."""

    source: FrameSource
    questions: tuple[EvaluationQuestion, ...]

    @property
    def name(self) -> str:
        """Name in results."""
        return self.source.name

    def data(self) -> dict[str, Any]:
        """As plain data: equal data, equal stream and questions."""
        asked = [
            {**dataclasses.asdict(question), "expected": question.expected.data(), "at": repr(question.at)}
            for question in self.questions
        ]
        return {"name": self.name, "source": self.source.data(), "questions": asked}


@dataclass(frozen=True)
class Job:
    """One cell run on one episode: the unit of work, of resuming, and of spreading."""

    cell: Cell
    episode: Episode
    weights: str = ""
    """Digest of the model's weights, where they are files here."""
    manner: str = ""
    """How it is run where that may change answers; empty: in code."""
    key: str = field(init=False, default="")
    """Digest of all that decides the results; names the run in the result files."""

    def __post_init__(self) -> None:
        parts = [self.cell.data(), self.episode.data(), self.weights, self.manner]
        text = json.dumps(parts, sort_keys=True, default=str)
        object.__setattr__(self, "key", hashlib.sha256(text.encode()).hexdigest()[:16])


def make_jobs(cells: Sequence[Cell], episodes: Sequence[Episode], manner: str = "") -> list[Job]:
    """Every cell on every episode: model by model, and all cells of an episode together, so that it is decoded once."""
    weights = {cell.model: weights_digest(cell.model) for cell in cells}
    return [
        Job(cell, episode, weights[model], manner)
        for model in weights for episode in episodes for cell in cells if cell.model == model
    ]  # fmt: skip


DESCRIPTIONS = ("README.md", "figures.json", "training.json")
"""Files beside a model's weights that change no answer."""


def weights_digest(model: str) -> str:
    """Digest of a local model's files by name, size and time of change; empty for a hub id."""
    folder = TINY_FOLDER if model == "tiny" else Path(model).expanduser()
    if not folder.is_dir():
        return ""
    files = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(folder.iterdir())
             if file.name not in DESCRIPTIONS]  # fmt: skip
    return hashlib.sha256(repr(files).encode()).hexdigest()[:16]
