# SPDX-License-Identifier: Apache-2.0
"""The grid of an evaluation: every model x policy x budget x archive, and the jobs that run it on the episodes."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ros_kvstream.errors import SettingsError
from ros_kvstream.evaluation.episodes import Episode
from ros_kvstream.settings import ModelSettings, StreamSettings, require, require_finite

Override = tuple[str, Any]
"""(dotted name of a setting, value), such as ("memory.keep_ratio", 0.5)."""


@dataclass(frozen=True)
class Cell:
    """One memory of the grid."""

    model: str = "tiny"
    policy: str = "infinipot_v"
    budget_mib: float = 0.0
    """Budget of the arena; 0: ``budget_share`` applies."""
    budget_share: float = 0.0
    """Budget as a share of the full cache of the whole stream, 0 - 1; prompt, question and answer come on top."""
    archive_mib: float = 0.0
    """Budget of the archive; 0: none."""
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
        """The budget as text."""
        return f"{self.budget_mib:g} MiB" if self.budget_mib else f"{100 * self.budget_share:g} %"

    @property
    def label(self) -> str:
        """The cell as text, without its model."""
        archive = f" + archive {self.archive_mib:g} MiB" if self.archive_mib else ""
        return f"{self.policy} {self.budget}{archive}"

    def data(self) -> dict[str, Any]:
        """Plain data for results; :func:`read_cell` makes an equal cell of it."""
        return {**dataclasses.asdict(self), "overrides": dict(self.overrides)}

    def settings(self, budget_mib: float) -> StreamSettings:
        """Settings of this cell's stream.

        :param budget_mib: the budget in MiB, also where the cell has it as a share.
        """
        chosen = [("memory.policy", self.policy), ("memory.budget_mib", budget_mib)]
        chosen += [("archive.budget_mib", self.archive_mib)]
        return override(StreamSettings(model=ModelSettings(path=self.model)), [*chosen, *self.overrides])


def read_cell(data: Mapping[str, Any]) -> Cell:
    """Return the cell that :meth:`Cell.data` wrote."""
    return Cell(**{**data, "overrides": tuple(sorted(data.get("overrides", {}).items()))})


def override(settings: StreamSettings, values: Sequence[Override]) -> StreamSettings:
    """Return settings with some values replaced; all of them are checked together, in any order.

    :raises SettingsError: for an unknown name, or a value that is not allowed.
    """
    groups: dict[str, dict[str, Any]] = {}
    for name, value in values:
        group, _, key = name.partition(".")
        known = getattr(settings, group, None)
        if not dataclasses.is_dataclass(known) or key not in {item.name for item in dataclasses.fields(known)}:
            raise SettingsError(f"--set {name}: no such setting; a name looks like memory.keep_ratio")
        now = getattr(known, key)
        if isinstance(now, tuple) and isinstance(value, list):
            value = tuple(value)
        fits = isinstance(value, type(now)) or (isinstance(now, float) and isinstance(value, int))
        if not fits or isinstance(value, bool) != isinstance(now, bool):
            raise SettingsError(f"--set {name} = {value!r}: must be of the type of {now!r}")
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
    """Return every combination in the order given, with models outermost so that each is loaded once.

    :param shares: budgets as shares of the full cache instead of ``budgets_mib``.
    """
    require(not (budgets_mib and shares), "--budget-share", list(shares), "given without --budget-mib")
    budgets = [(mib, 0.0) for mib in budgets_mib] or [(0.0, share) for share in shares]
    cells = [
        Cell(model, policy, mib, share, archive, tuple(sorted(overrides)))
        for model, archive, policy, (mib, share) in itertools.product(models, archives_mib, policies, budgets)
    ]
    for cell in cells:
        cell.settings(cell.budget_mib or 1.0)  # rejects bad settings before anything runs
    return list(dict.fromkeys(cells))


@dataclass(frozen=True)
class Job:
    """One cell on one episode: the unit of running, resuming and distributing."""

    cell: Cell
    episode: Episode
    weights: str = ""
    """Digest of the model's weights, where they are local files."""
    manner: str = ""
    """How it runs where that can change answers; empty: in code."""
    key: str = field(init=False, default="")
    """Digest of all that decides the results; names the run in the result files."""

    def __post_init__(self) -> None:
        parts = [self.cell.data(), self.episode.data(), self.weights, self.manner]
        text = json.dumps(parts, sort_keys=True, default=str)
        object.__setattr__(self, "key", hashlib.sha256(text.encode()).hexdigest()[:16])


def make_jobs(cells: Sequence[Cell], episodes: Sequence[Episode], manner: str = "") -> list[Job]:
    """Return every cell on every episode, by model and then by episode, so that each episode is decoded once."""
    weights = {cell.model: weights_digest(cell.model) for cell in cells}
    return [
        Job(cell, episode, weights[model], manner)
        for model in weights for episode in episodes for cell in cells if cell.model == model
    ]  # fmt: skip


DESCRIPTIONS = ("README.md", "figures.json", "training.json")
"""Files beside a model's weights that do not change answers."""


def weights_digest(model: str) -> str:
    """Digest of a local model's files by name, size and time of change; empty for a hub id."""
    from ros_kvstream.models.loading import TINY_FOLDER

    folder = TINY_FOLDER if model == "tiny" else Path(model).expanduser()
    if not folder.is_dir():
        return ""
    files = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(folder.iterdir())
             if file.name not in DESCRIPTIONS]  # fmt: skip
    return hashlib.sha256(repr(files).encode()).hexdigest()[:16]
