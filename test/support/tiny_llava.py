# SPDX-License-Identifier: Apache-2.0
"""Random tiny models of the LLaVA-NeXT families and of SmolVLM2, made in memory: no file, no hub."""

from __future__ import annotations

from typing import Any

import torch

from ros_kvstream.models.llava_next import LlavaNext
from ros_kvstream.models.llava_next_video import LlavaNextVideo
from ros_kvstream.models.smolvlm2 import SmolVLM2
from support.tiny_families import DIGITS, LLAVA_SPECIAL, PIECES, text_config
from support.tiny_models import WORDS, random_network, small_tokenizer

TURNS = (
    "{% for message in messages %}USER: {% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<{{ part['type'] }}>\n{% endif %}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %} ASSISTANT:{% endif %}"
)
SMOL_SPECIAL = ["<|pad|>", "<|unk|>", "<|im_start|>", "<|im_end|>", "<image>", "<end_of_utterance>", "<global-img>"]
SMOL_SPECIAL += ["<fake_token_around_image>"]
SMOL_WORDS = "User You are provided following series of frames from video Frame Assistant :".split()


def clip_tower() -> dict[str, Any]:
    """A small CLIP tower: 6 x 6 patches and a class token, three layers."""
    return {
        "model_type": "clip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "image_size": 48,
        "patch_size": 8,
        "projection_dim": 32,
    }


def clip_processor() -> Any:
    """The picture part with the family's own way: shortest edge, then the centre. Ours ask for the whole picture."""
    try:
        from transformers import CLIPImageProcessorPil as Processor
    except ImportError:
        from transformers import CLIPImageProcessor as Processor
    return Processor(size={"shortest_edge": 48}, crop_size={"height": 48, "width": 48})


def llava_next_video(*, seed: int = 0, layers: int = 3, limit: int = 4096) -> LlavaNextVideo:
    """A random LLaVA-NeXT-Video on a Llama behind our interface: 6 x 6 patches pooled to 3 x 3 tokens."""
    from transformers import LlavaNextVideoConfig, LlavaNextVideoForConditionalGeneration

    tokenizer = small_tokenizer(LLAVA_SPECIAL, [*WORDS, *DIGITS, "USER", "ASSISTANT", ":"], PIECES, TURNS)
    config = LlavaNextVideoConfig(
        text_config={"model_type": "llama", **text_config(tokenizer, layers, limit)},
        vision_config=clip_tower(),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=[[48, 96]],
    )
    network = random_network(LlavaNextVideoForConditionalGeneration, config, seed)
    return LlavaNextVideo("random", network, tokenizer, clip_processor())


def llava_next(*, seed: int = 0, layers: int = 3, limit: int = 4096, window: int | None = None) -> LlavaNext:
    """A random LLaVA 1.6 on a Mistral behind our interface: 6 x 6 patches and a newline."""
    from transformers import LlavaNextConfig, LlavaNextForConditionalGeneration

    tokenizer = small_tokenizer(LLAVA_SPECIAL, [*WORDS, *DIGITS, "USER", "ASSISTANT", ":"], PIECES, TURNS)
    text = {"model_type": "mistral", "sliding_window": window, **text_config(tokenizer, layers, limit)}
    config = LlavaNextConfig(
        text_config=text,
        vision_config=clip_tower(),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=[[48, 96]],
    )
    network = random_network(LlavaNextForConditionalGeneration, config, seed)
    with torch.no_grad():
        network.model.image_newline.normal_()
    return LlavaNext("random", network, tokenizer, clip_processor())


def smolvlm2(*, seed: int = 0, layers: int = 3, limit: int = 4096) -> SmolVLM2:
    """A random SmolVLM2 behind our interface: 6 x 6 patches folded to 3 x 3 tokens."""
    from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration

    try:
        from transformers import SmolVLMImageProcessorPil as Processor
    except ImportError:
        from transformers import SmolVLMImageProcessor as Processor
    tokenizer = small_tokenizer(SMOL_SPECIAL, [*WORDS, *DIGITS, *SMOL_WORDS], r"\n|[0-9]|[A-Za-z]+|[^\sA-Za-z0-9]")
    config = SmolVLMConfig(
        text_config={"model_type": "llama", "pad_token_id": 0, **text_config(tokenizer, layers, limit)},
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 48,
            "patch_size": 8,
        },
        scale_factor=2,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        tie_word_embeddings=False,
    )
    network = random_network(SmolVLMForConditionalGeneration, config, seed)
    return SmolVLM2("random", network, tokenizer, Processor())
