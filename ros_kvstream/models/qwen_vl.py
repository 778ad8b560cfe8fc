# SPDX-License-Identifier: Apache-2.0
"""What the Qwen-VL families share: pictures of any size on a grid of merged patches, the prompt, M-RoPE by sections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ros_kvstream.models.base import Frame, FrameTokens
from ros_kvstream.models.checkpoint import Checkpoint
from ros_kvstream.models.layout import Layout, TimedGrids
from ros_kvstream.models.network import NetworkModel, rotary_of, split_chat_template
from ros_kvstream.models.transformers_compat import mrope_sections, run_vision_tower, smart_resize

Grid = tuple[int, int]
"""Rows and columns of a picture's patches, before they are merged."""


def mrope_axes(sections: Sequence[int]) -> Tensor:
    """Axis (0 = t, 1 = h, 2 = w) of each pair of dimensions for M-RoPE in sections, int64 [head_dim / 2]."""
    return torch.tensor([axis % 3 for axis, size in enumerate(sections) for _ in range(size)])


def interleaved_axes(sections: Sequence[int]) -> Tensor:
    """Axes of interleaved M-RoPE: t h w t h w ..., and t where the sections of h and w are used up."""
    axes = torch.zeros(sum(sections), dtype=torch.int64)
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = axis
    return axes


class QwenVL(NetworkModel):
    """A Qwen-VL family. A temporal grid is one frame, doubled over the temporal patch, or two frames."""

    image_processors = ("Qwen2VLImageProcessorPil", "Qwen2VLImageProcessor")
    frames_per_grid = 2
    layout: Layout

    def __init__(self, name: str, network: Any, tokenizer: Any, image_processor: Any, *, trained: bool = True) -> None:
        super().__init__(name, network, tokenizer, image_processor, trained=trained)
        vision = network.config.vision_config
        self._merge = vision.spatial_merge_size
        self.patch_side = vision.patch_size * self._merge
        embedding = self.language_model.rotary_emb
        self.rotary = rotary_of(embedding, self.device, mrope_axes(mrope_sections(embedding)))
        self.use_prompt(*split_chat_template(tokenizer, "<|video_pad|>"), "<|im_end|>")
        self.layout = TimedGrids(len(self.prefix_ids))

    @classmethod
    def open(cls, checkpoint: Checkpoint) -> NetworkModel:
        """Load a checkpoint of this family; ``max_frame_pixels`` limits the size to which pictures are resized."""
        model = super().open(checkpoint)
        if checkpoint.settings.max_frame_pixels:
            size, side = model.image_processor.size, model.image_processor.patch_size * model.image_processor.merge_size
            most = max(checkpoint.settings.max_frame_pixels, side**2)
            model.image_processor.size = {"shortest_edge": min(size["shortest_edge"], most), "longest_edge": most}
        return model

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of visual tokens: merged patches after the processor's resize."""
        size = self.image_processor.size
        side = self.image_processor.patch_size * self.image_processor.merge_size
        rows, columns = smart_resize(
            height, width, factor=side, min_pixels=size["shortest_edge"], max_pixels=size["longest_edge"]
        )
        return rows // side, columns // side

    @torch.inference_mode()
    def encode_frames(self, frames: Sequence[Frame]) -> list[FrameTokens]:
        """Run the vision tower on pictures of any sizes."""
        return self._encode(*self._patches(frames))

    @torch.inference_mode()
    def encode_pairs(self, pairs: Sequence[tuple[Frame, Frame]]) -> list[FrameTokens]:
        """Run the vision tower on grids of two frames, laid out as by the families' video processors."""
        pictures, grids = self._patches([frame for pair in pairs for frame in pair])
        size = self.image_processor.patch_size**2
        both = []
        for first, second in zip(pictures[::2], pictures[1::2], strict=True):
            moments = [patches.view(len(patches), -1, 2, size)[:, :, 0] for patches in (first, second)]
            both.append(torch.stack(moments, dim=2).flatten(1))
        return self._encode(both, grids[::2])

    def _patches(self, frames: Sequence[Frame]) -> tuple[list[Tensor], list[Grid]]:
        """Patches of each frame, doubled, [patches, channels * 2 * patch * patch], and its grid."""
        inputs = self.image_processor(images=list(frames), input_data_format="channels_last", return_tensors="pt")
        grids = [(rows, columns) for rows, columns in inputs["image_grid_thw"][:, 1:].tolist()]
        pixels = inputs["pixel_values"].to(self.device, self.shape.dtype)
        return list(pixels.split([rows * columns for rows, columns in grids])), grids

    def _encode(self, pictures: list[Tensor], grids: list[Grid]) -> list[FrameTokens]:
        encoded = self.run_tower(pictures, grids)
        return [
            FrameTokens(embeddings, rows // self._merge, columns // self._merge)
            for embeddings, (rows, columns) in zip(encoded, grids, strict=True)
        ]

    def run_tower(self, pictures: list[Tensor], grids: list[Grid]) -> list[Tensor]:
        """Merged tokens of each picture, [tokens, width] in raster order, here of all pictures in one pass.

        DeepStack features, where the family has them, follow the merged tokens along the width.

        :param pictures: patches as the image processor makes them, [patches, channels * 2 * patch * patch] each.
        """
        merged, levels = run_vision_tower(self.network.model.visual, pictures, grids)
        sizes = [rows * columns // self._merge**2 for rows, columns in grids]
        return list(torch.cat([merged, *levels], dim=-1).split(sizes))

    def position_ids(self, positions: Tensor) -> Tensor:
        """Position ids on the three axes of M-RoPE, int64 [3, 1, tokens]."""
        return self.rotary.axis_positions(positions).to(self.device).long().T[:, None]
