"""The supported model families: where each one's file is and which class of transformers it wraps.

A new family is one line here and one file beside this one (docs/add_a_model.md).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from ros_kvstream.errors import ModelError


@dataclass(frozen=True)
class Family:
    """One family of models."""

    module: str
    """Module with ``open_model(checkpoint) -> VideoLanguageModel``."""
    architecture: str
    """Name of its class in transformers."""

    def open(self) -> Any:
        """The family's module, imported when it is needed."""
        return importlib.import_module(self.module)

    def network_class(self) -> Any:
        """The class in transformers; raises ModelError where the installed version has none."""
        import transformers

        try:
            return getattr(transformers, self.architecture)
        except AttributeError as error:
            raise ModelError(
                f"transformers {transformers.__version__} has no {self.architecture}: "
                "take a newer one, such as pip install -U transformers"
            ) from error


FAMILIES: dict[str, Family] = {
    "qwen2_vl": Family("ros_kvstream.models.qwen2_vl", "Qwen2VLForConditionalGeneration"),
    "qwen2_5_vl": Family("ros_kvstream.models.qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"),
    "qwen3_vl": Family("ros_kvstream.models.qwen3_vl", "Qwen3VLForConditionalGeneration"),
    "llava_onevision": Family("ros_kvstream.models.llava_onevision", "LlavaOnevisionForConditionalGeneration"),
    "llava_next_video": Family("ros_kvstream.models.llava_next_video", "LlavaNextVideoForConditionalGeneration"),
    "llava_next": Family("ros_kvstream.models.llava_next", "LlavaNextForConditionalGeneration"),
    "smolvlm": Family("ros_kvstream.models.smolvlm2", "SmolVLMForConditionalGeneration"),
}
"""Supported families by the ``model_type`` of their config.json."""


def family_of(name: str, config: dict[str, Any]) -> Family:
    """The family of a checkpoint by its config.json; raises ModelError that names what is supported."""
    family = config.get("model_type", "")
    if family not in FAMILIES:
        raise ModelError(
            f"model = {name!r} is of family {family!r}, which is not supported. "
            f"Supported: {', '.join(sorted(FAMILIES))}."
        )
    return FAMILIES[family]
