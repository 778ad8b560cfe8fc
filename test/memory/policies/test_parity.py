# SPDX-License-Identifier: Apache-2.0
"""compatibility = paper keeps exactly the slots that the published selection keeps.

KVSTREAM_PARITY_DIR names another folder of the same form: cases.json and one npz per case with keys, values and kept.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.slots import indices

from ros_kvstream.memory.policies import LayerSlots, SelectionPolicy, make_policy
from ros_kvstream.memory.rotary import Rotary

FOLDER = Path(os.environ.get("KVSTREAM_PARITY_DIR") or Path(__file__).parents[2] / "data" / "parity")
CASES: list[dict[str, Any]] = json.loads((FOLDER / "cases.json").read_text())


def paper_policy(case: dict[str, Any]) -> SelectionPolicy:
    if case["method"] == "swa":
        return make_policy("sliding_window", {})
    if case["method"] == "uniform":
        return make_policy("uniform", {"compatibility": "paper"})
    options = {
        "compatibility": "paper",
        "alpha": case["tar_ratio"],
        "recent_share": case["recent_ratio"],
        "depth_pooling": case["depth_pooling"],
    }
    return make_policy("infinipot_v", options)


def frame_slots(case: dict[str, Any], layer: int, keys: torch.Tensor, values: torch.Tensor) -> LayerSlots:
    """One layer without the system tokens, which a policy never sees."""
    slot = torch.arange(case["frames"] * case["tokens_per_frame"])
    frame, patch = slot // case["tokens_per_frame"], slot % case["tokens_per_frame"]
    columns = case["tokens_per_frame"] // case["grid_height"]
    positions = torch.stack([frame, patch // columns, patch % columns], dim=-1).int().expand(len(keys), -1, -1)
    return LayerSlots(
        layer=layer,
        layers=case["layers"],
        keys=keys,
        values=values,
        key_norms=torch.linalg.vector_norm(keys, dim=-1),
        value_norms=torch.linalg.vector_norm(values, dim=-1),
        positions=positions,
        frames=positions[..., 0],
        cameras=torch.zeros(positions.shape[:2], dtype=torch.int16),
        rotary=Rotary(torch.ones(keys.shape[-1] // 2), torch.zeros(keys.shape[-1] // 2, dtype=torch.int64)),
    )


@pytest.mark.parametrize("case", CASES, ids=[case["file"] for case in CASES])
def test_paper_keeps_the_slots_that_the_published_selection_keeps(case: dict[str, Any]) -> None:
    with np.load(FOLDER / case["file"]) as stored:
        keys, values, kept = (torch.from_numpy(stored[name]) for name in ("keys", "values", "kept"))
    system = case["system_tokens"]
    keep = case["keep_frames"] * case["tokens_per_frame"]
    policy = paper_policy(case)
    prompt = torch.arange(system).expand(case["kv_heads"], -1)
    for layer in range(case["layers"]):
        view = frame_slots(case, layer, keys[layer, :, system:], values[layer, :, system:])
        ours = torch.cat([prompt, indices(policy.select(view, keep)) + system], dim=-1)
        assert torch.equal(ours, kept[layer].long())


def test_paper_works_where_the_published_code_stops() -> None:
    policy = make_policy("infinipot_v", {"compatibility": "paper", "alpha": 0.1, "recent_share": 0.25})
    for frames, keep in ((3, 8), (8, 30), (8, 1), (4, 13)):
        case = {"frames": frames, "tokens_per_frame": 6, "grid_height": 2, "layers": 6}
        generator = torch.Generator().manual_seed(frames)
        keys, values = torch.randn(2, 2, frames * 6, 8, generator=generator)
        for layer in (0, 5):
            kept = policy.select(frame_slots(case, layer, keys, values), keep)
            assert kept.sum(-1).tolist() == [keep, keep]
