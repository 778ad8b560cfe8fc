# SPDX-License-Identifier: Apache-2.0
"""Random tiny models of the families beside Qwen2.5-VL, made in memory: no file, no hub."""

from __future__ import annotations

from typing import Any

import torch

from ros_kvstream.models.llava_onevision import LlavaOneVision
from ros_kvstream.models.qwen2_vl import Qwen2VL
from ros_kvstream.models.qwen3_vl import Qwen3VL
from support.tiny_models import CHAT_TEMPLATE, SPECIAL, WORDS, image_processor, random_network, rope, small_tokenizer

DIGITS = [*"0123456789", "seconds", "<", ">"]
PIECES = r"\n|[0-9]|[a-z]+|[^\sa-z0-9]"
"""Digits and signs are tokens of their own, as in the real tokenizers."""
LLAVA_TEMPLATE = CHAT_TEMPLATE.replace("<|vision_start|><|video_pad|><|vision_end|>", "<video>\n")
LLAVA_SPECIAL = ["<|pad|>", "<|unk|>", "<|im_start|>", "<|im_end|>", "<image>", "<video>"]


def text_config(tokenizer: Any, layers: int, limit: int, **options: Any) -> dict[str, Any]:
    """A small grouped-query decoder: 4 heads of 16 over 2 KV heads."""
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": limit,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        **options,
    }


def qwen_tokens(tokenizer: Any) -> dict[str, int]:
    """The token ids that the Qwen-VL configs name."""
    names = {"image_token_id": "image_pad", "video_token_id": "video_pad"}
    names |= {"vision_start_token_id": "vision_start", "vision_end_token_id": "vision_end"}
    return {key: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for key, name in names.items()}


def qwen2_vl(*, seed: int = 0, layers: int = 3, limit: int = 4096, pixels: int = 56 * 84) -> Qwen2VL:
    """A random Qwen2-VL behind our interface."""
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
    """A random Qwen3-VL with features of two tower layers behind our interface."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    tokenizer = small_tokenizer(SPECIAL, [*WORDS, *DIGITS], PIECES)
    config = Qwen3VLConfig(
        text_config=text_config(
            tokenizer, layers, limit, head_dim=16, **rope(mrope_section=[4, 2, 2], mrope_interleaved=True)
        ),
        vision_config={
            "depth": 3,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 64,
            "num_position_embeddings": 36,
            "deepstack_visual_indexes": [0, 1],
        },
        **qwen_tokens(tokenizer),
    )
    network = random_network(Qwen3VLForConditionalGeneration, config, seed)
    return Qwen3VL("random", network, tokenizer, image_processor(pixels, patch_size=16))


def llava_onevision(*, seed: int = 0, layers: int = 3, limit: int = 4096) -> LlavaOneVision:
    """A random LLaVA-OneVision behind our interface: 5 x 5 patches pooled to 3 x 3 tokens."""
    from transformers import LlavaOnevisionConfig, LlavaOnevisionForConditionalGeneration

    tokenizer = small_tokenizer(LLAVA_SPECIAL, [*WORDS, *DIGITS], PIECES, LLAVA_TEMPLATE)
    config = LlavaOnevisionConfig(
        text_config={"model_type": "qwen2", **text_config(tokenizer, layers, limit)},
        vision_config={
            "model_type": "siglip_vision_model",
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 40,
            "patch_size": 8,
            "vision_use_head": False,
        },
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
    )
    network = random_network(LlavaOnevisionForConditionalGeneration, config, seed)
    with torch.no_grad():
        network.model.image_newline.normal_()
    return LlavaOneVision("random", network, tokenizer, square_processor(40))


def square_processor(side: int) -> Any:
    """The picture part of a family whose tower takes squares."""
    try:
        from transformers import SiglipImageProcessorPil as Processor
    except ImportError:
        from transformers import SiglipImageProcessor as Processor
    return Processor(size={"height": side, "width": side})
