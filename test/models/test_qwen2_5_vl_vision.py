from __future__ import annotations

import numpy as np
import pytest
import torch
from support.tiny_models import qwen2_5_vl

from ros_kvstream.models.qwen2_5_vl_vision import BatchedVisionTower


@pytest.mark.parametrize(
    "size", [(56, 56), (28, 28), (112, 112), (140, 84), (200, 120), (168, 224), (84, 196)], ids=lambda size: f"{size}"
)
@pytest.mark.parametrize("frames", [1, 3])
def test_batched_tower_equals_the_librarys_on_any_picture_size(size: tuple[int, int], frames: int) -> None:
    model = qwen2_5_vl(pixels=300 * 300, seed=frames)
    generator = np.random.default_rng(size[0])
    pictures = [generator.integers(0, 255, (*size, 3), dtype=np.uint8) for _ in range(frames)]
    inputs = model.image_processor(images=pictures, return_tensors="pt")
    grid = inputs["image_grid_thw"]
    tower = model.network.model.visual
    with torch.inference_mode():
        output = tower(inputs["pixel_values"], grid_thw=grid)
        expected = getattr(output, "pooler_output", output)  # transformers 4 gives the tensor alone
        patches = inputs["pixel_values"].view(frames, -1, inputs["pixel_values"].shape[-1])
        ours = BatchedVisionTower(tower)(patches, *grid[0, 1:].tolist())
    assert ours.shape == (frames, expected.shape[0] // frames, expected.shape[1])
    assert torch.allclose(ours.flatten(0, 1), expected, atol=1e-5)


def test_pictures_of_different_sizes_in_one_call_equal_single_calls() -> None:
    model = qwen2_5_vl(pixels=200 * 200)
    generator = np.random.default_rng(0)
    sizes = [(56, 56), (100, 140), (56, 56), (140, 100), (100, 140)]
    pictures = [generator.integers(0, 255, (*size, 3), dtype=np.uint8) for size in sizes]
    together = model.encode_frames(pictures)
    for picture, tokens in zip(pictures, together, strict=True):
        alone = model.encode_frames([picture])[0]
        assert (alone.rows, alone.columns) == (tokens.rows, tokens.columns)
        assert torch.allclose(alone.embeddings, tokens.embeddings, atol=1e-5)
