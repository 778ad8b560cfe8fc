# SPDX-License-Identifier: Apache-2.0
"""The supported model families: the class of each one here and in transformers.

A new family is one line here and one file beside this one (docs/add_a_model.md).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from ros_kvstream.errors import ModelError


@dataclass(frozen=True)
class Family:
    """One family: its module and class here, and its class in transformers; all are imported on first use."""

    module: str
    name: str
    architecture: str

    def model_class(self) -> Any:
        """Import the family's class."""
        return getattr(importlib.import_module(f"ros_kvstream.models.{self.module}"), self.name)

    def network_class(self) -> Any:
        """Import the class of transformers; raises ModelError where the installed version has none."""
        import transformers

        try:
            return getattr(transformers, self.architecture)
        except AttributeError as error:
            raise ModelError(
                f"transformers {transformers.__version__} has no {self.architecture}: "
                "install a newer version, for example with pip install -U transformers"
            ) from error


FAMILIES: dict[str, Family] = {
    "qwen2_vl": Family("qwen2_vl", "Qwen2VL", "Qwen2VLForConditionalGeneration"),
    "qwen2_5_vl": Family("qwen2_5_vl", "Qwen25VL", "Qwen2_5_VLForConditionalGeneration"),
    "qwen3_vl": Family("qwen3_vl", "Qwen3VL", "Qwen3VLForConditionalGeneration"),
    "llava_onevision": Family("llava_onevision", "LlavaOneVision", "LlavaOnevisionForConditionalGeneration"),
    "llava_next_video": Family("llava_next_video", "LlavaNextVideo", "LlavaNextVideoForConditionalGeneration"),
    "llava_next": Family("llava_next", "LlavaNext", "LlavaNextForConditionalGeneration"),
    "smolvlm": Family("smolvlm2", "SmolVLM2", "SmolVLMForConditionalGeneration"),
}
"""Supported families by the ``model_type`` of their config.json."""


def family_of(name: str, config: dict[str, Any]) -> Family:
    """Find the family of a checkpoint by its config.json; raises ModelError that lists the supported ones."""
    family = str(config.get("model_type", ""))
    if family not in FAMILIES:
        raise ModelError(
            f"model = {name!r} is of family {family!r}, which is not supported. "
            f"Supported: {', '.join(sorted(FAMILIES))}."
        )
    return FAMILIES[family]
