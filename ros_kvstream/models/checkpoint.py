# SPDX-License-Identifier: Apache-2.0
"""One checkpoint that is being opened: gives a family its network, tokenizer and image processor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ros_kvstream.errors import ModelError
from ros_kvstream.models.base import PositionRange
from ros_kvstream.models.devices import resolve_attention
from ros_kvstream.models.families import Family
from ros_kvstream.models.hub import INDEX_FILE, Report, download, has_weights, require_all_weights
from ros_kvstream.models.packed_weights import pack_weights
from ros_kvstream.models.quantization import quantization_config
from ros_kvstream.models.transformers_compat import require_rope, set_attention
from ros_kvstream.models.weight_memory import check_memory, skeleton
from ros_kvstream.settings import ModelSettings

OLD_TEMPLATE_FILE, TOKENIZER_FILE = "chat_template.json", "tokenizer_config.json"
RANGE_FILE = "kvstream.json"
"""Beside a checkpoint's config: {"position_limit": N}, as `kvstream benchmark range --write` writes it."""


def template_file(folder: Path) -> str:
    """Name of the file in a model's folder that holds the chat template."""
    names = ("chat_template.jinja", OLD_TEMPLATE_FILE)
    return next((name for name in names if (folder / name).is_file()), TOKENIZER_FILE)


def one_line(error: Exception) -> str:
    """Type and message of an error of a library, without line breaks."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


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

    @cached_property
    def network_config(self) -> Any:
        """The config as an object of transformers."""
        with self._reading("config.json"):
            return self.family.network_class().config_class.from_pretrained(self.folder)

    def network(self) -> Any:
        """Load the network, in evaluation mode: random where a folder has no weights, empty on the meta device.

        :raises ModelError: before anything is loaded when there is too little memory.
        """
        settings, architecture = self.settings, self.family.network_class()
        config = self.network_config
        with self._reading("config.json"):
            require_rope(config.text_config)
            shapes = skeleton(architecture, config)
        if self.device.type == "meta":
            self.trained = self.on_hub or self._has_weights()
            return shapes.to(self.dtype).eval()
        if settings.check_memory:
            check_memory(
                settings.path, shapes, self.dtype, self.device,
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
        if not (self.folder / TOKENIZER_FILE).is_file():
            raise ModelError(
                f"model = {self.settings.path!r}: incomplete download: it has no {TOKENIZER_FILE}, without which "
                "text becomes other tokens than the model was trained on. Fetch it again."
            )
        file, template = self.folder / template_file(self.folder), None
        with self._reading(file.name):
            if file.suffix == ".jinja":
                template = file.read_text(encoding="utf-8")
            elif file.name == OLD_TEMPLATE_FILE:
                template = json.loads(file.read_text(encoding="utf-8"))["chat_template"]
        _ = self.network_config  # AutoTokenizer reads config.json too: its faults are reported as its own
        with self._reading("tokenizer.json or tokenizer_config.json"):
            tokenizer = AutoTokenizer.from_pretrained(self.folder, local_files_only=True, trust_remote_code=code)
        if file.name != TOKENIZER_FILE:
            tokenizer.chat_template = template
        return tokenizer

    def image_processor(self, *names: str) -> Any:
        """Load the image processor with the first of these classes that the installed transformers has.

        Only the image part is loaded, not the whole processor: the video part of some families needs torchvision.
        """
        import transformers

        found = next((name for name in names if hasattr(transformers, name)), names[-1])
        with self._reading("preprocessor_config.json"):
            return getattr(transformers, found).from_pretrained(self.folder, local_files_only=True)

    @contextmanager
    def _reading(self, file: str) -> Iterator[None]:
        """Convert the errors of a library that reads a file to one sentence that names the file."""
        try:
            yield
        except ModelError:
            raise
        except Exception as error:  # the libraries raise anything for a file they do not expect
            raise ModelError(f"model = {self.settings.path!r}: {file} cannot be used: {one_line(error)}") from error

    def measured_range(self) -> PositionRange | None:
        """Read the range that was measured for this checkpoint (RANGE_FILE in its folder); None without one.

        :raises ModelError: when the file is damaged, or names a limit that the model does not have.
        """
        file = self.folder / RANGE_FILE
        if not file.is_file():
            return None
        largest = self.network_config.text_config.max_position_embeddings
        with self._reading(RANGE_FILE):
            limit = json.loads(file.read_text(encoding="utf-8"))["position_limit"]
        if type(limit) is not int or not 1 <= limit <= largest:
            raise ModelError(
                f"model = {self.settings.path!r}: position_limit = {limit!r} in {RANGE_FILE}: must be a whole number "
                f"from 1 to {largest}, the model's max_position_embeddings. Correct the file, or remove it."
            )
        return PositionRange(limit, f"measured, {RANGE_FILE}")

    def _has_weights(self) -> bool:
        with self._reading(INDEX_FILE):
            require_all_weights(self.settings.path, self.folder)
        return has_weights(self.settings.path, [path.name for path in self.folder.iterdir()])

    def _load(self, architecture: Any, config: Any, attention: str) -> Any:
        quantization, options = self.settings.quantization, {}
        if quantization != "none":
            options["quantization_config"] = quantization_config(quantization, self.dtype)
        if quantization.startswith("bitsandbytes") or self.config.get("quantization_config"):
            options["device_map"] = {"": self.device}  # these cannot be moved afterwards
        network, found = architecture.from_pretrained(
            self.folder, config=config, dtype=self.dtype, local_files_only=True, use_safetensors=True,
            attn_implementation=attention, output_loading_info=True, **options,
        )  # fmt: skip
        if missing := sorted(found["missing_keys"]):
            unused = sorted(found["unexpected_keys"])
            unknown = f"; {len(unused)} have unknown names, e.g. {unused[0]}" if unused else ""
            raise ModelError(
                f"model = {self.settings.path!r}: {len(missing)} of {len(network.state_dict())} tensors are missing "
                f"from its weights, e.g. {missing[0]}{unknown}. Fetch it again, or save it with save_pretrained of "
                f"{architecture.__name__}."
            )
        return network.eval() if "device_map" in options else network.to(self.device).eval()

    def _random(self, architecture: Any, config: Any, attention: str) -> Any:
        set_attention(config, attention)
        torch.manual_seed(self.seed)
        with torch.device("cpu"):  # equal seeds give equal weights on every device
            network = architecture(config)
        return network.to(self.device, self.dtype).eval()
