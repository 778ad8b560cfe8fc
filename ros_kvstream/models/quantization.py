# SPDX-License-Identifier: Apache-2.0
"""Weights in 8 or 4 bits with bitsandbytes or torchao, both optional; vision tower and head keep their dtype."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import torch

from ros_kvstream.errors import ModelError

KEPT_EXACT = (
    "visual", "vision_tower", "vision_model", "multi_modal_projector", "connector", "lm_head",
    "model.visual", "model.vision_tower", "model.vision_model", "model.multi_modal_projector", "model.connector",
)  # fmt: skip
"""Modules that are not quantized: small compared to the language model, and sensitive."""
GROUP = 64
"""Weights that share a scale in 4 bits."""


@dataclass(frozen=True)
class Quantization:
    """A quantization of weights."""

    package: str
    """Package that implements it, and the name of our optional extra that installs it."""
    bits: int

    @property
    def weight_bytes(self) -> float:
        """Bytes of one weight, including its share of the scales."""
        return self.bits / 8 + (4 / GROUP if self.bits == 4 else 0.0)


QUANTIZATIONS: dict[str, Quantization] = {
    "bitsandbytes-int8": Quantization("bitsandbytes", 8),
    "bitsandbytes-nf4": Quantization("bitsandbytes", 4),
    "torchao-int8": Quantization("torchao", 8),
    "torchao-int4": Quantization("torchao", 4),
}


def require_packages(name: str) -> None:
    """Raise ModelError with the pip command where a package that a quantization needs is not installed."""
    chosen = QUANTIZATIONS[name]
    needed = (chosen.package, "accelerate") if chosen.package == "bitsandbytes" else (chosen.package,)
    missing = [package for package in needed if importlib.util.find_spec(package) is None]
    if missing:
        raise ModelError(
            f"quantization = {name!r} needs packages that are not installed: {', '.join(missing)}. "
            f"pip install 'ros_kvstream[{chosen.package}]' or pip install {' '.join(missing)}, "
            "or use quantization = none."
        )


def quantization_config(name: str, dtype: torch.dtype) -> Any:
    """Build the ``quantization_config`` for from_pretrained of transformers."""
    import transformers

    skipped = list(KEPT_EXACT)
    if name == "bitsandbytes-int8":
        return transformers.BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=skipped)
    if name == "bitsandbytes-nf4":
        return transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=dtype,
            llm_int8_skip_modules=skipped,
        )
    from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig

    kind = Int8WeightOnlyConfig() if name == "torchao-int8" else Int4WeightOnlyConfig(group_size=GROUP)
    return transformers.TorchAoConfig(kind, modules_to_not_convert=skipped)


def stored_bits(config: dict[str, Any]) -> int:
    """Bits of the weights of a checkpoint published in quantized form (AWQ, GPTQ, FP8 ...); 0 for others."""
    found = config.get("quantization_config") or {}
    if not found:
        return 0
    if found.get("load_in_4bit") or found.get("_load_in_4bit"):
        return 4
    if found.get("load_in_8bit") or found.get("_load_in_8bit") or "fp8" in str(found.get("quant_method", "")):
        return 8
    return int(found.get("bits") or found.get("w_bit") or 16)
