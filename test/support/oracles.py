# SPDX-License-Identifier: Apache-2.0
"""The oracle of every family: the library's own forward over the whole sequence at once, [tokens, vocabulary].

Each takes (model, frames, stamps, question) and starts from pixels, placeholder tokens and the library's own attention
and mask; positions are the library's own except where those are known to be wrong.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ros_kvstream.models.attention import NAME
from ros_kvstream.models.llava_next import LlavaNext
from ros_kvstream.models.llava_next_video import LlavaNextVideo
from ros_kvstream.models.llava_onevision import LlavaOneVision
from ros_kvstream.models.qwen2_5_vl import Qwen25VL
from ros_kvstream.models.qwen2_vl import Qwen2VL
from ros_kvstream.models.qwen3_vl import Qwen3VL
from ros_kvstream.models.smolvlm2 import SmolVLM2
from ros_kvstream.models.transformers_compat import set_attention

SQUARE = {"size": {"height": 48, "width": 48}, "do_center_crop": False}
Frames = list[np.ndarray]


def plain_network(model: Any) -> Any:
    """The library's network with its own attention, beside the one that writes into an arena."""
    network = copy.deepcopy(model.network)
    for module in network.modules():
        config = getattr(module, "config", None)
        if getattr(config, "_attn_implementation", None) == NAME:
            set_attention(config, "eager")
    return network


def video_inputs(model: Qwen2VL | Qwen25VL, frames: list[np.ndarray], question: str) -> dict[str, torch.Tensor]:
    """The library's inputs for one video of doubled frames, its own positions not among them."""
    inputs = model.image_processor(images=frames, return_tensors="pt")
    grid = inputs["image_grid_thw"][0, 1:].tolist()
    video = model.network.config.video_token_id
    tokens = len(frames) * grid[0] * grid[1] // 4
    ids = torch.tensor([[*model.prefix_ids, *[video] * tokens, *model.suffix_ids(question)]])
    return {
        "input_ids": ids,
        "mm_token_type_ids": (ids == video).int() * 2,
        "pixel_values_videos": inputs["pixel_values"],
        "video_grid_thw": torch.tensor([[len(frames), *grid]]),
    }


def library_positions(model: Qwen2VL, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the library itself would use, [3, 1, tokens]."""
    find = model.network.model.get_rope_index
    known = inspect.signature(find).parameters
    return find(**{name: tensor for name, tensor in inputs.items() if name in known})[0]


def qwen2_vl(model: Qwen2VL, frames: Frames, stamps: list[float], question: str) -> torch.Tensor:
    """Logits of the library's own forward, with its own positions but for the text behind the video."""
    inputs = video_inputs(model, frames, question)
    positions = library_positions(model, inputs)
    suffix = len(model.suffix_ids(question))
    start = int(positions[..., :-suffix].max()) + 1
    positions[..., -suffix:] = torch.arange(start, start + suffix)
    with torch.inference_mode():
        return plain_network(model)(**inputs, position_ids=positions, use_cache=False).logits[0]


def qwen2_5_vl(model: Qwen25VL, frames: Frames, stamps: list[float], question: str) -> torch.Tensor:
    """Logits of the library's own one-shot forward: pixels, placeholder tokens, its own attention and mask."""
    inputs = video_inputs(model, frames, question)
    rows, columns = (inputs["video_grid_thw"][0, 1:] // 2).tolist()
    start = len(model.prefix_ids)
    seconds = [stamp - stamps[0] for stamp in stamps]
    positions = [(i, i, i) for i in range(start)]
    for second in seconds:
        t = start + math.floor(second * model.tokens_per_second + 0.25)
        positions += [(t, start + row, start + column) for row in range(rows) for column in range(columns)]
    after = max(max(position) for position in positions) + 1
    positions += [(after + i,) * 3 for i in range(len(model.suffix_ids(question)))]
    places = torch.tensor(positions).T[:, None]
    with torch.inference_mode():
        return plain_network(model)(**inputs, position_ids=places, use_cache=False).logits[0]


def qwen3_vl(model: Qwen3VL, frames: Frames, stamps: list[float], question: str) -> torch.Tensor:
    """Logits of the library's own forward; times as text, positions, mask and DeepStack are its own."""
    inputs = model.image_processor(images=frames, return_tensors="pt")
    grid = inputs["image_grid_thw"][0, 1:].tolist()
    video = model.network.config.video_token_id
    text = "".join(
        f"<{stamp - stamps[0]:.1f} seconds><|vision_start|>{'<|video_pad|>' * (grid[0] * grid[1] // 4)}<|vision_end|>"
        for stamp in stamps
    )
    ids = torch.tensor([[*model.prefix_ids, *model.tokenize(text), *model.suffix_ids(question)]])
    with torch.inference_mode():
        return plain_network(model)(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),  # without one 4.57 takes equal positions for packed sequences
            mm_token_type_ids=(ids == video).int() * 2,
            pixel_values_videos=inputs["pixel_values"],
            video_grid_thw=torch.tensor([[len(frames), *grid]]),
            use_cache=False,
        ).logits[0]


def llava_video(
    model: LlavaOneVision | LlavaNextVideo, frames: Frames, stamps: list[float], question: str
) -> torch.Tensor:
    """Logits of the library's own forward over one video; pooling, positions, mask and newline are its own."""
    side = model.network.config.vision_config.image_size
    square = {"size": {"height": side, "width": side}, "do_center_crop": False}
    pixels = model.image_processor(images=frames, return_tensors="pt", **square)["pixel_values"]
    newlines = int(isinstance(model, LlavaOneVision))
    placeholders = [model.network.config.video_token_id] * (9 * len(frames) + newlines)
    ids = [*model.prefix_ids, *placeholders, *model.suffix_ids(question)[newlines:]]
    with torch.inference_mode():
        return plain_network(model)(
            input_ids=torch.tensor([ids]), pixel_values_videos=pixels[None], use_cache=False
        ).logits[0]


def llava_next(model: LlavaNext, frames: Frames, stamps: list[float], question: str) -> torch.Tensor:
    """Logits of the library's own forward over images of their overview tile alone, packed by itself.

    A best resolution of 0 x 0 makes the library cut no further tiles.
    """
    pixels = model.image_processor(images=frames, return_tensors="pt", **SQUARE)["pixel_values"]
    image = model.network.config.image_token_id
    ids = [*model.prefix_ids, *[image] * (37 * len(frames)), *model.suffix_ids(question)]
    network = plain_network(model)
    network.model.config.image_grid_pinpoints = [[0, 0]]
    sizes = torch.tensor([frame.shape[:2] for frame in frames])
    with torch.inference_mode():
        return network(
            input_ids=torch.tensor([ids]), pixel_values=pixels[:, None], image_sizes=sizes, use_cache=False
        ).logits[0]


def smolvlm2(model: SmolVLM2, frames: Frames, stamps: list[float], question: str) -> torch.Tensor:
    """Logits of the library's own forward over one prompt of text and placeholders."""
    edge = {"longest_edge": 48}
    pixels = model.image_processor(
        images=[frames], size=edge, max_image_size=edge, do_image_splitting=False, return_tensors="pt"
    )["pixel_values"]
    text = "<|im_start|>User: You are provided the following series of frames from a video.\n"
    for stamp in stamps:
        second = int(stamp - stamps[0])
        text += f"\nFrame from 00:{second:02d}:<fake_token_around_image><global-img>"
        text += "<image>" * 9 + "<fake_token_around_image>"
    text += f"\n\n{question}<end_of_utterance>\nAssistant:"
    ids = model.tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        return plain_network(model)(input_ids=ids, pixel_values=pixels, use_cache=False).logits[0]


ORACLES: dict[str, Callable[..., torch.Tensor]] = {
    "qwen2_vl": qwen2_vl,
    "qwen2_5_vl": qwen2_5_vl,
    "qwen3_vl": qwen3_vl,
    "llava_onevision": llava_video,
    "llava_next_video": llava_video,
    "llava_next": llava_next,
    "smolvlm": smolvlm2,
}
"""By the ``model_type`` of the family."""
