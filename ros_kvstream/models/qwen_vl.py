"""What the Qwen-VL families share: pictures of any size on a grid of merged patches, the prompt, M-RoPE by sections."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from ros_kvstream.models.base import Frame, FrameTokens
from ros_kvstream.models.chat_template import split_chat_template, use_processor_template
from ros_kvstream.models.checkpoint import Checkpoint
from ros_kvstream.models.network import NetworkModel, rotary_of

Family = TypeVar("Family", bound="QwenVL")
Grid = tuple[int, int]
"""Rows and columns of a picture's patches, before they are merged."""


def mrope_axes(sections: Sequence[int]) -> Tensor:
    """Axis (0 = t, 1 = h, 2 = w) of each pair of dimensions for M-RoPE in sections, int64 [head_dim / 2]."""
    return torch.tensor([axis % 3 for axis, size in enumerate(sections) for _ in range(size)])


def interleaved_axes(sections: Sequence[int]) -> Tensor:
    """Axes of interleaved M-RoPE: t h w t h w ..., and t where h and w have used up their share."""
    axes = torch.zeros(sum(sections), dtype=torch.int64)
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = axis
    return axes


def sections_of(embedding: Any) -> list[int]:
    """The M-RoPE sections of a language model's ``rotary_emb``; older transformers keep them in its config alone."""
    sections = getattr(embedding, "mrope_section", None) or embedding.config.rope_scaling["mrope_section"]
    return [int(size) for size in sections]


class QwenVL(NetworkModel):
    """A Qwen-VL family. A temporal grid is one frame, doubled over the temporal patch, or two frames."""

    frames_per_grid = 2

    def __init__(self, name: str, model: Any, tokenizer: Any, image_processor: Any, *, trained: bool = True) -> None:
        """Wrap a loaded network, its tokenizer and its image processor."""
        super().__init__(name, model, model.model.language_model, tokenizer, trained=trained)
        self.image_processor = image_processor
        vision = model.config.vision_config
        self._merge = vision.spatial_merge_size
        self.patch_side = vision.patch_size * self._merge
        embedding = self.language_model.rotary_emb
        self.rotary = rotary_of(embedding, self.device, mrope_axes(sections_of(embedding)))
        self.use_prompt(*split_chat_template(tokenizer, "<|video_pad|>"), "<|im_end|>")

    # -- pictures -------------------------------------------------------------------------------------------------

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of visual tokens: patches after the processor's own resize, merged."""
        try:
            from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
        except ImportError:
            from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

        processor = self.image_processor
        size = processor.size
        patch = processor.patch_size * processor.merge_size
        rows, columns = smart_resize(
            height, width, factor=patch, min_pixels=size["shortest_edge"], max_pixels=size["longest_edge"]
        )
        return rows // patch, columns // patch

    @torch.inference_mode()
    def encode_frames(self, frames: Sequence[Frame]) -> list[FrameTokens]:
        """Run the vision tower on pictures of any sizes."""
        return self._encode(*self._patches(frames))

    @torch.inference_mode()
    def encode_pairs(self, pairs: Sequence[tuple[Frame, Frame]]) -> list[FrameTokens]:
        """Run the vision tower on grids of two frames, as the families' video processors lay them out."""
        pictures, grids = self._patches([frame for pair in pairs for frame in pair])
        size = self.image_processor.patch_size**2
        both = []
        for first, second in zip(pictures[::2], pictures[1::2], strict=True):
            moments = [patches.view(len(patches), -1, 2, size)[:, :, 0] for patches in (first, second)]
            both.append(torch.stack(moments, dim=2).flatten(1))
        return self._encode(both, grids[::2])

    def _patches(self, frames: Sequence[Frame]) -> tuple[list[Tensor], list[Grid]]:
        """Patches of each frame, doubled, [patches, channels * 2 * patch * patch], and its grid."""
        inputs = self.image_processor(images=list(frames), return_tensors="pt")
        grids = [(rows, columns) for rows, columns in inputs["image_grid_thw"][:, 1:].tolist()]
        pixels = inputs["pixel_values"].to(self.device, self.shape.dtype)
        return list(pixels.split([rows * columns for rows, columns in grids])), grids

    def _encode(self, pictures: list[Tensor], grids: list[Grid]) -> list[FrameTokens]:
        encoded = self.run_tower(pictures, grids)
        return [
            FrameTokens(embeddings, rows // self._merge, columns // self._merge)
            for embeddings, (rows, columns) in zip(encoded, grids, strict=True)
        ]

    @abstractmethod
    def run_tower(self, pictures: list[Tensor], grids: list[Grid]) -> list[Tensor]:
        """Merged tokens of each picture, [tokens, width] in raster order.

        :param pictures: patches as the image processor makes them, [patches, channels * 2 * patch * patch] each.
        """

    # -- the language model ---------------------------------------------------------------------------------------

    def position_ids(self, positions: Tensor) -> Tensor:
        """int64 [3, 1, tokens]."""
        return self.rotary.axis_positions(positions).to(self.device).long().T[:, None]


def library_tower(tower: Any, pictures: list[Tensor], grids: list[Grid]) -> tuple[Tensor, list[Tensor]]:
    """transformers' own vision tower over several pictures: merged tokens [tokens of all, hidden], DeepStack features.

    The features are a list of tensors of the same shape, empty where the family has none.
    """
    grid_thw = torch.tensor([(1, rows, columns) for rows, columns in grids], device=pictures[0].device)
    output = tower(torch.cat(pictures), grid_thw=grid_thw)
    if isinstance(output, Tensor):  # transformers 4
        return output, []
    if isinstance(output, tuple):
        return output[0], list(output[1])
    return output.pooler_output, list(getattr(output, "deepstack_features", None) or [])


def open_qwen(family: type[Family], checkpoint: Checkpoint) -> Family:
    """Load a checkpoint of one of these families."""
    network, tokenizer = checkpoint.network(), checkpoint.tokenizer()
    use_processor_template(tokenizer, checkpoint.folder)
    processor = checkpoint.image_processor("Qwen2VLImageProcessorPil", "Qwen2VLImageProcessor")
    if checkpoint.max_frame_pixels:
        edge = max(checkpoint.max_frame_pixels, (processor.patch_size * processor.merge_size) ** 2)
        processor.size = {"shortest_edge": min(processor.size["shortest_edge"], edge), "longest_edge": edge}
    return family(checkpoint.name, network, tokenizer, processor, trained=checkpoint.trained)
