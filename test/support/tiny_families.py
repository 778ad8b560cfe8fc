# SPDX-License-Identifier: Apache-2.0
"""Random tiny models of every family, made in memory: no file, no hub."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ros_kvstream.models.llava_next import LlavaNext
from ros_kvstream.models.llava_next_video import LlavaNextVideo
from ros_kvstream.models.llava_onevision import LlavaOneVision
from ros_kvstream.models.qwen2_vl import Qwen2VL
from ros_kvstream.models.qwen3_vl import Qwen3VL
from ros_kvstream.models.smolvlm2 import SmolVLM2
from support.tiny_models import (
    CHAT_TEMPLATE,
    SPECIAL,
    WORDS,
    image_processor,
    library_class,
    qwen2_5_vl,
    qwen_tokens,
    random_network,
    rope,
    small_tokenizer,
    text_config,
)

DIGITS = [*"0123456789", "seconds", "<", ">"]
PIECES = r"\n|[0-9]|[a-z]+|[^\sa-z0-9]"
"""Digits and signs are tokens of their own, as in the real tokenizers."""
LLAVA_TEMPLATE = CHAT_TEMPLATE.replace("<|vision_start|><|video_pad|><|vision_end|>", "<video>\n")
LLAVA_SPECIAL = ["<|pad|>", "<|unk|>", "<|im_start|>", "<|im_end|>", "<image>", "<video>"]
TURNS = (
    "{% for message in messages %}USER: {% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<{{ part['type'] }}>\n{% endif %}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %} ASSISTANT:{% endif %}"
)
SMOL_SPECIAL = ["<|pad|>", "<|unk|>", "<|im_start|>", "<|im_end|>", "<image>", "<end_of_utterance>", "<global-img>"]
SMOL_SPECIAL += ["<fake_token_around_image>"]
SMOL_WORDS = "User You are provided following series of frames from video Frame Assistant :".split()


def square_tower(kind: str, layers: int, side: int, **options: Any) -> dict[str, Any]:
    """A small vision tower of this model type, over patches of 8 x 8 pixels of pictures with this side."""
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": layers, "num_attention_heads": 2}
    return {"model_type": kind, **shape, "image_size": side, "patch_size": 8, **options}


def image_tokens(tokenizer: Any, *media: str) -> dict[str, int]:
    """The placeholders' token ids, as the configs of the LLaVA families name them."""
    return {f"{name}_token_index": tokenizer.convert_tokens_to_ids(f"<{name}>") for name in ("image", *media)}


def qwen2_vl(*, seed: int = 0, layers: int = 3, limit: int = 4096, pixels: int = 56 * 84) -> Qwen2VL:
    """A random Qwen2-VL."""
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    tokenizer = small_tokenizer()
    config = Qwen2VLConfig(
        text_config=text_config(tokenizer, layers, limit, **rope(mrope_section=[4, 2, 2])),
        vision_config={"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2},
        **qwen_tokens(tokenizer),
    )
    network = random_network(Qwen2VLForConditionalGeneration, config, seed)
    return Qwen2VL("random", network, tokenizer, image_processor(pixels))


def qwen3_vl(*, seed: int = 0, layers: int = 4, limit: int = 4096, pixels: int = 64 * 96) -> Qwen3VL:
    """A random Qwen3-VL with features of two tower layers."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    tokenizer = small_tokenizer(SPECIAL, [*WORDS, *DIGITS], PIECES)
    vision = {"depth": 3, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64}
    vision |= {"num_position_embeddings": 36, "deepstack_visual_indexes": [0, 1]}
    sections = rope(mrope_section=[4, 2, 2], mrope_interleaved=True)
    config = Qwen3VLConfig(
        text_config=text_config(tokenizer, layers, limit, head_dim=16, **sections),
        vision_config=vision,
        **qwen_tokens(tokenizer),
    )
    network = random_network(Qwen3VLForConditionalGeneration, config, seed)
    return Qwen3VL("random", network, tokenizer, image_processor(pixels, patch_size=16))


def llava_onevision(*, seed: int = 0, layers: int = 3, limit: int = 4096) -> LlavaOneVision:
    """A random LLaVA-OneVision: 5 x 5 patches pooled to 3 x 3 tokens."""
    from transformers import LlavaOnevisionConfig, LlavaOnevisionForConditionalGeneration

    tokenizer = small_tokenizer(LLAVA_SPECIAL, [*WORDS, *DIGITS], PIECES, LLAVA_TEMPLATE)
    config = LlavaOnevisionConfig(
        text_config={"model_type": "qwen2", **text_config(tokenizer, layers, limit)},
        vision_config=square_tower("siglip_vision_model", 2, 40, vision_use_head=False),
        **image_tokens(tokenizer, "video"),
    )
    network = random_network(LlavaOnevisionForConditionalGeneration, config, seed)
    with torch.no_grad():
        network.model.image_newline.normal_()
    processor = library_class("SiglipImageProcessor")(size={"height": 40, "width": 40})
    return LlavaOneVision("random", network, tokenizer, processor)


def clip_processor() -> Any:
    """The image processor as the family publishes it: shortest edge, then centre crop."""
    processor = library_class("CLIPImageProcessor")
    return processor(size={"shortest_edge": 48}, crop_size={"height": 48, "width": 48})


def llava_next_video(*, seed: int = 0, layers: int = 3, limit: int = 4096) -> LlavaNextVideo:
    """A random LLaVA-NeXT-Video on a Llama: 6 x 6 patches pooled to 3 x 3 tokens."""
    from transformers import LlavaNextVideoConfig, LlavaNextVideoForConditionalGeneration

    tokenizer = small_tokenizer(LLAVA_SPECIAL, [*WORDS, *DIGITS, "USER", "ASSISTANT", ":"], PIECES, TURNS)
    config = LlavaNextVideoConfig(
        text_config={"model_type": "llama", **text_config(tokenizer, layers, limit)},
        vision_config=square_tower("clip_vision_model", 3, 48, projection_dim=32),
        **image_tokens(tokenizer, "video"),
        image_grid_pinpoints=[[48, 96]],
    )
    network = random_network(LlavaNextVideoForConditionalGeneration, config, seed)
    return LlavaNextVideo("random", network, tokenizer, clip_processor())


def llava_next(*, seed: int = 0, layers: int = 3, limit: int = 4096, window: int | None = None) -> LlavaNext:
    """A random LLaVA 1.6 on a Mistral: 6 x 6 patches and a newline."""
    from transformers import LlavaNextConfig, LlavaNextForConditionalGeneration

    tokenizer = small_tokenizer(LLAVA_SPECIAL, [*WORDS, *DIGITS, "USER", "ASSISTANT", ":"], PIECES, TURNS)
    text = {"model_type": "mistral", "sliding_window": window, **text_config(tokenizer, layers, limit)}
    config = LlavaNextConfig(
        text_config=text,
        vision_config=square_tower("clip_vision_model", 3, 48, projection_dim=32),
        **image_tokens(tokenizer),
        image_grid_pinpoints=[[48, 96]],
    )
    network = random_network(LlavaNextForConditionalGeneration, config, seed)
    with torch.no_grad():
        network.model.image_newline.normal_()
    return LlavaNext("random", network, tokenizer, clip_processor())


def smolvlm2(*, seed: int = 0, layers: int = 3, limit: int = 4096) -> SmolVLM2:
    """A random SmolVLM2: 6 x 6 patches folded to 3 x 3 tokens."""
    from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration

    tokenizer = small_tokenizer(SMOL_SPECIAL, [*WORDS, *DIGITS, *SMOL_WORDS], r"\n|[0-9]|[A-Za-z]+|[^\sA-Za-z0-9]")
    config = SmolVLMConfig(
        text_config={"model_type": "llama", "pad_token_id": 0, **text_config(tokenizer, layers, limit)},
        vision_config=square_tower("smolvlm_vision", 2, 48),
        scale_factor=2,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        tie_word_embeddings=False,
    )
    network = random_network(SmolVLMForConditionalGeneration, config, seed)
    return SmolVLM2("random", network, tokenizer, library_class("SmolVLMImageProcessor")())


def wide_qwen2_5_vl(**options: Any) -> Any:
    """A random Qwen2.5-VL whose grid for the tests' pictures has more columns than rows."""
    return qwen2_5_vl(**{"pixels": 56 * 84, **options})


TINY: dict[str, Callable[..., Any]] = {
    "qwen2_vl": qwen2_vl,
    "qwen2_5_vl": wide_qwen2_5_vl,
    "qwen3_vl": qwen3_vl,
    "llava_onevision": llava_onevision,
    "llava_next_video": llava_next_video,
    "llava_next": llava_next,
    "smolvlm": smolvlm2,
}
"""(seed=, layers=, limit=) -> a random tiny model, by the ``model_type`` of the family."""
EVERY_FAMILY = pytest.mark.parametrize("make", TINY.values(), ids=TINY.keys())
