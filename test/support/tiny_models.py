# SPDX-License-Identifier: Apache-2.0
"""Random tiny models of the real architectures, with a small tokenizer, made in memory: no file, no hub."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ros_kvstream.models.base import FrameTokens
from ros_kvstream.models.qwen2_5_vl import Qwen25VL

SPECIAL = ["<|pad|>", "<|unk|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"]
SPECIAL += ["<|image_pad|>", "<|video_pad|>"]
WORDS = "user assistant system what colour is the cone red green blue left right where was a ? .".split()
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def small_tokenizer(
    special: Sequence[str] = SPECIAL,
    words: Sequence[str] = WORDS,
    pattern: str = r"\n|[^\s]+",
    template: str = CHAT_TEMPLATE,
) -> PreTrainedTokenizerFast:
    """Word-level, with a family's special tokens (Qwen's by default) and a chat template of its form.

    :param pattern: matches one word; characters between words are dropped.
    """
    vocabulary = {word: index for index, word in enumerate([*special, *words, "\n"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unk|>"))
    split = pre_tokenizers.Split(Regex(pattern), behavior="removed", invert=True)
    tokenizer.pre_tokenizer = split
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<|unk|>", pad_token="<|pad|>", eos_token="<|im_end|>"
    )
    fast.add_special_tokens({"additional_special_tokens": list(special[2:])})
    fast.chat_template = template
    return fast


def library_class(name: str) -> Any:
    """An image processor's class in transformers, the variant that needs no torchvision if there is one."""
    import transformers

    return getattr(transformers, f"{name}Pil", None) or getattr(transformers, name)


def image_processor(pixels: int = 56 * 56, **options: Any) -> Any:
    """Qwen's image processor, limited to small pictures."""
    processor = library_class("Qwen2VLImageProcessor")
    return processor(size={"shortest_edge": 28 * 28, "longest_edge": pixels}, **options)


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


def qwen2_5_vl(
    *,
    seed: int = 0,
    layers: int = 3,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    sections: tuple[int, int, int] = (4, 2, 2),
    tokens_per_second: int = 2,
    pixels: int = 56 * 56,
    limit: int = 4096,
    dtype: torch.dtype = torch.float32,
) -> Qwen25VL:
    """A random Qwen2.5-VL of the given shape."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    tokenizer = small_tokenizer()
    hidden = heads * head_dim
    shape = {"hidden_size": hidden, "intermediate_size": 2 * hidden}
    shape |= {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": hidden}
    vision |= {"tokens_per_second": tokens_per_second, "fullatt_block_indexes": [1], "window_size": 56}
    config = Qwen2_5_VLConfig(
        text_config=text_config(tokenizer, layers, limit, **shape, **rope(mrope_section=list(sections))),
        vision_config=vision,
        **qwen_tokens(tokenizer),
    )
    network = random_network(Qwen2_5_VLForConditionalGeneration, config, seed, dtype)
    return Qwen25VL("random", network, tokenizer, image_processor(pixels))


def rope(**options: Any) -> dict[str, Any]:
    """Rotary embeddings in a decoder's config, as the installed transformers names them."""
    import transformers

    kind = {"rope_type": "default", **options}
    if int(transformers.__version__.split(".")[0]) < 5:
        return {"rope_theta": 1e4, "rope_scaling": kind}
    return {"rope_parameters": {"rope_theta": 1e4, **kind}}


def random_network(architecture: Any, config: Any, seed: int, dtype: torch.dtype = torch.float32) -> Any:
    """A network with random weights so large that every part affects the output."""
    torch.manual_seed(seed)
    network = architecture(config).to(dtype)
    for parameter in network.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    return network


def cheap_vision(model: Qwen25VL) -> Qwen25VL:
    """Replace the vision tower by a fixed random projection of the patches' mean colours.

    For tests of the parts after the tower: fast, and equal frames still give equal tokens.
    """
    hidden = model.network.config.text_config.hidden_size
    projection = torch.randn(3, hidden, generator=torch.Generator().manual_seed(7)) * 2

    def encode(frames: Any) -> list[FrameTokens]:
        encoded = []
        for frame in frames:
            rows, columns = model.grid(frame.shape[0], frame.shape[1])
            pixels = torch.from_numpy(frame).permute(2, 0, 1).float() / 255
            colours = torch.nn.functional.adaptive_avg_pool2d(pixels, (rows, columns)).flatten(1).T
            encoded.append(FrameTokens(((colours - 0.5) @ projection).to(model.shape.dtype), rows, columns))
        return encoded

    model.encode_frames = encode  # type: ignore[method-assign]
    return model
