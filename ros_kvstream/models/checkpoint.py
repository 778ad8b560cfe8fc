# SPDX-License-Identifier: Apache-2.0
"""One checkpoint that is being opened: gives a family its network, tokenizer and image processor."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ros_kvstream.errors import ModelError
from ros_kvstream.models.base import PositionRange
from ros_kvstream.models.devices import resolve_attention
from ros_kvstream.models.families import Family
from ros_kvstream.models.hub import Report, download, is_weights, require_safetensors
from ros_kvstream.models.packed_weights import pack_weights
from ros_kvstream.models.quantization import quantization_config
from ros_kvstream.models.transformers_compat import set_attention
from ros_kvstream.models.weight_memory import check_memory, skeleton
from ros_kvstream.settings import ModelSettings

RANGE_FILE = "kvstream.json"
"""Beside a checkpoint's config: {"position_limit": N}, as `kvstream benchmark range --write` writes it."""


@dataclass
class Checkpoint:
    """A model by its settings; families take it apart in their ``open``."""

    settings: ModelSettings
    folder: Path
    """Where config, tokenizer and processor are, and the weights unless they are still on a hub."""
    config: dict[str, Any]
    family: Family
    device: torch.device
    """Device to load to; the meta device for the shapes alone."""
    dtype: torch.dtype
    on_hub: bool
    """Whether its weights are still to be fetched from a hub."""
    seed: int = 0
    beside: int = 0
    """Bytes that must stay free on the device in addition to the weights."""
    report: Report = print
    trained: bool = field(default=True, init=False)
    """False when there are no weights and random ones are used; set by :meth:`network`."""

    def network(self) -> Any:
        """Load the network, in evaluation mode: random where a folder has no weights, empty on the meta device.

        :raises ModelError: before anything is loaded when there is too little memory.
        """
        settings, architecture = self.settings, self.family.network_class()
        config = architecture.config_class.from_pretrained(self.folder)
        if self.device.type == "meta":
            self.trained = self.on_hub or self._has_weights()
            return skeleton(architecture, config).to(self.dtype).eval()
        if settings.check_memory:
            check_memory(
                settings.path, skeleton(architecture, config), self.dtype, self.device,
                quantization=settings.quantization, beside=self.beside,
            )  # fmt: skip
        attention = resolve_attention(settings.attention, self.device, self.dtype, architecture)
        if self.on_hub:
            self.folder = download(settings.path, weights=True, code=settings.trust_remote_code, report=self.report)
        self.trained = self._has_weights()
        network = (self._load if self.trained else self._random)(architecture, config, attention)
        if settings.quantization == "none" and not self.config.get("quantization_config"):
            pack_weights(network)
        return network

    def tokenizer(self) -> Any:
        """Load the tokenizer, with the processor's chat template if there is one: its own may not support pictures."""
        from transformers import AutoTokenizer

        code = self.settings.trust_remote_code
        tokenizer = AutoTokenizer.from_pretrained(self.folder, local_files_only=True, trust_remote_code=code)
        jinja, old = self.folder / "chat_template.jinja", self.folder / "chat_template.json"
        if jinja.is_file():
            tokenizer.chat_template = jinja.read_text(encoding="utf-8")
        elif old.is_file():
            tokenizer.chat_template = json.loads(old.read_text(encoding="utf-8"))["chat_template"]
        return tokenizer

    def image_processor(self, *names: str) -> Any:
        """Load the image processor with the first of these classes that the installed transformers has.

        Only the image part is loaded, not the whole processor: the video part of some families needs torchvision.
        """
        import transformers

        found = next((name for name in names if hasattr(transformers, name)), names[-1])
        return getattr(transformers, found).from_pretrained(self.folder, local_files_only=True)

    def measured_range(self, largest: int) -> PositionRange | None:
        """Read the range that was measured for this checkpoint (RANGE_FILE in its folder); None without one.

        :raises ModelError: when the file is damaged or names a limit outside [1, largest].
        """
        file = self.folder / RANGE_FILE
        if not file.is_file():
            return None
        try:
            limit = json.loads(file.read_text(encoding="utf-8"))["position_limit"]
        except (ValueError, TypeError, KeyError) as error:
            reason = f"no position_limit can be read ({error!r})"
            raise ModelError(f"{file}: {reason}. Correct the file, or remove it.") from error
        if type(limit) is not int or not 1 <= limit <= largest:
            raise ModelError(
                f"{file}: position_limit = {limit!r}: must be a whole number from 1 to {largest}, the model's "
                "max_position_embeddings. Correct the file, or remove it."
            )
        return PositionRange(limit, f"measured, {RANGE_FILE}")

    def _has_weights(self) -> bool:
        files = [path.name for path in self.folder.iterdir()]
        require_safetensors(self.settings.path, files)
        return any(is_weights(file) for file in files)

    def _load(self, architecture: Any, config: Any, attention: str) -> Any:
        quantization, options = self.settings.quantization, {}
        if quantization != "none":
            options["quantization_config"] = quantization_config(quantization, self.dtype)
        if quantization.startswith("bitsandbytes") or self.config.get("quantization_config"):
            options["device_map"] = {"": self.device}  # these cannot be moved afterwards
        network = architecture.from_pretrained(
            self.folder, config=config, dtype=self.dtype, local_files_only=True, use_safetensors=True,
            attn_implementation=attention, **options,
        )  # fmt: skip
        return network.eval() if "device_map" in options else network.to(self.device).eval()

    def _random(self, architecture: Any, config: Any, attention: str) -> Any:
        set_attention(config, attention)
        torch.manual_seed(self.seed)
        with torch.device("cpu"):  # equal seeds give equal weights on every device
            network = architecture(config)
        return network.to(self.device, self.dtype).eval()
