# SPDX-License-Identifier: Apache-2.0
"""docs/add_a_policy.md: the code on the page makes a policy that works under its name."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.arenas import append, make_arena

from ros_kvstream.errors import SettingsError
from ros_kvstream.memory.policies import make_policy, policy_names
from ros_kvstream.memory.policies.base import REGISTRY

PAGE = Path(__file__).parents[3] / "docs" / "add_a_policy.md"


@pytest.fixture(autouse=True)
def policy_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Import the page's code as a module of its own."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    (tmp_path / "decay_of_the_page.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    __import__("decay_of_the_page")
    yield
    del sys.modules["decay_of_the_page"], REGISTRY["decay"]


def test_it_is_found_by_name_and_its_setting_is_checked() -> None:
    assert "decay" in policy_names()
    with pytest.raises(SettingsError, match=r"memory\.decay\.half_life = 0: must be .* from 1 to"):
        make_policy("decay", {"half_life": 0})


@pytest.mark.parametrize(("half_life", "newest_only"), [(1.0, True), (1e6, False)])
def test_it_compacts_an_arena_and_its_setting_has_the_described_effect(half_life: float, newest_only: bool) -> None:
    arena = make_arena(frame_slots=40)
    for frame in range(10):
        append(arena, 4, frame=frame, t=frame, seed=frame)
    arena.compact(make_policy("decay", {"half_life": half_life}), 12)
    assert arena.frame_slots_used == 12
    assert (min(arena.frames_kept()) >= 4) is newest_only
