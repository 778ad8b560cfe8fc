# SPDX-License-Identifier: Apache-2.0
"""The files around the weights: configuration, word-level tokenizer, chat template, image processor."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
)

from ros_kvstream.patrol.questions import vocabulary
from ros_kvstream.patrol.scene import NATIVE_SIZE

SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>",
    "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<|unk|>",
)  # fmt: skip
LONGEST_POSITION = 8192
"""Positions are trained from 0 to this."""

CHAT_TEMPLATE = """{%- for message in messages -%}
<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}
{%- if part['type'] == 'image' or 'image' in part or 'image_url' in part -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- elif part['type'] == 'video' or 'video' in part -%}
<|vision_start|><|video_pad|><|vision_end|>
{%- elif 'text' in part -%}
{{ part['text'] }}
{%- endif -%}
{% endfor %}{% endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Lower-cased words and punctuation marks; anything else is <|unk|>."""
    words = [*SPECIAL, *vocabulary()]
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="<|unk|>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<|unk|>", pad_token="<|endoftext|>", eos_token="<|im_end|>",
        chat_template=CHAT_TEMPLATE, clean_up_tokenization_spaces=False, model_max_length=LONGEST_POSITION,
        additional_special_tokens=list(SPECIAL[1:8]),
    )  # fmt: skip


def make_config(words: int) -> Qwen2_5_VLConfig:
    """The Qwen2.5-VL architecture at about two million parameters.

    Twelve of the sixteen bands of the rotary embedding go to time, theta 1e5: the slowest of them turns by 3 rad over
    all trained positions, so that "earlier" and "later" stay in order. Rows and columns of two by two tokens need few.
    """
    rope = {"rope_type": "default", "type": "default", "mrope_section": [12, 2, 2], "rope_theta": 100000.0}
    ids = {"bos_token_id": SPECIAL.index("<|endoftext|>"), "eos_token_id": SPECIAL.index("<|im_end|>"),
           "pad_token_id": SPECIAL.index("<|endoftext|>")}  # fmt: skip
    return Qwen2_5_VLConfig(
        text_config={
            "vocab_size": words, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": LONGEST_POSITION,
            "rope_parameters": rope, "tie_word_embeddings": True, "rms_norm_eps": 1e-6, **ids,
        },
        vision_config={
            "depth": 2, "hidden_size": 128, "intermediate_size": 256, "num_heads": 4, "patch_size": 14,
            "spatial_merge_size": 2, "temporal_patch_size": 2, "tokens_per_second": 2, "window_size": 112,
            "out_hidden_size": 128, "fullatt_block_indexes": [0, 1], "in_channels": 3,
        },
        image_token_id=SPECIAL.index("<|image_pad|>"), video_token_id=SPECIAL.index("<|video_pad|>"),
        vision_start_token_id=SPECIAL.index("<|vision_start|>"), vision_end_token_id=SPECIAL.index("<|vision_end|>"),
        tie_word_embeddings=True, dtype="float32", **ids,
    )  # fmt: skip


def make_processor() -> Qwen2VLImageProcessorPil:
    """Every picture becomes 56 x 56 pixels, four merged tokens."""
    return Qwen2VLImageProcessorPil(size={"shortest_edge": NATIVE_SIZE**2, "longest_edge": NATIVE_SIZE**2})


def _add_names_of_transformers_4(folder: Path) -> None:
    """Write what transformers 4.57 reads beside what 5 writes: rotary settings, tokenizer class, picture size."""
    config = json.loads((folder / "config.json").read_text())
    rope = config["text_config"]["rope_parameters"]
    config["text_config"]["rope_theta"] = rope["rope_theta"]
    config["text_config"]["rope_scaling"] = {key: rope[key] for key in ("rope_type", "type", "mrope_section")}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer["tokenizer_class"] = "PreTrainedTokenizerFast"
    tokenizer["additional_special_tokens"] = tokenizer.pop("extra_special_tokens", list(SPECIAL[1:8]))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer, indent=2) + "\n")
    processor = json.loads((folder / "preprocessor_config.json").read_text())
    processor |= {"min_pixels": processor["size"]["shortest_edge"], "max_pixels": processor["size"]["longest_edge"]}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=2) + "\n")


def save(model: Qwen2_5_VLForConditionalGeneration, folder: Path) -> None:
    """Write a folder that AutoTokenizer, the image processor and the model load with their plain from_pretrained."""
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(
        bos_token_id=model.config.text_config.bos_token_id, eos_token_id=SPECIAL.index("<|im_end|>"),
        pad_token_id=SPECIAL.index("<|endoftext|>"), do_sample=False,
    )  # fmt: skip
    model.save_pretrained(folder, safe_serialization=True)
    make_tokenizer().save_pretrained(folder)
    make_processor().save_pretrained(folder)
    _add_names_of_transformers_4(folder)
