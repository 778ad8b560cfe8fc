"""One checkpoint that is being opened: what a family's file asks for network, tokenizer and image processor."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ros_kvstream.models.devices import resolve_attention
from ros_kvstream.models.families import Family
from ros_kvstream.models.hub import Report, download, is_weights, require_safetensors
from ros_kvstream.models.packed_weights import pack_weights
from ros_kvstream.models.quantization import quantization_config
from ros_kvstream.models.weight_memory import check_memory, skeleton


@dataclass
class Checkpoint:
    """A model by name, with how it is to be loaded; families take it apart in their ``open_model``."""

    name: str
    """As the user gave it."""
    folder: Path
    """Where config, tokenizer and processor are, and the weights unless they are still on a hub."""
    config: dict[str, Any]
    """Its config.json."""
    family: Family
    device: torch.device
    """Where it is to be; the meta device for its shapes alone."""
    dtype: torch.dtype
    attention: str = "auto"
    quantization: str = "none"
    max_frame_pixels: int = 0
    """Larger frames are scaled down to this many pixels; 0 keeps the model's own limit."""
    trust_remote_code: bool = False
    check_memory: bool = True
    beside: int = 0
    """Bytes that must stay free on the device beside the weights."""
    seed: int = 0
    on_hub: bool = False
    """Whether its weights are still to be fetched from a hub."""
    report: Report = print
    trained: bool = field(default=True, init=False)
    """False when there were no weights to load and random ones are used; known once there is a network."""

    # -- what families ask for ----------------------------------------------------------------------------------------

    def network(self) -> Any:
        """The loaded network, in evaluation mode: random where a folder has no weights, empty on the meta device.

        :raises ModelError: before anything is loaded when the memory does not suffice.
        """
        architecture = self.family.network_class()
        config = architecture.config_class.from_pretrained(self.folder)
        if self.device.type == "meta":
            self.trained = self.on_hub or self._has_weights()
            return skeleton(architecture, config).to(self.dtype).eval()
        if self.check_memory:
            check_memory(
                self.name, skeleton(architecture, config), self.dtype, self.device,
                quantization=self.quantization, beside=self.beside,
            )  # fmt: skip
        config._attn_implementation = resolve_attention(self.attention, self.device, self.dtype, architecture)
        if self.on_hub:
            self.folder = download(self.name, weights=True, code=self.trust_remote_code, report=self.report)
        self.trained = self._has_weights()
        network = self._loaded(architecture, config) if self.trained else self._random(architecture, config)
        if self.quantization == "none" and not config_quantized(self.config):
            pack_weights(network)
        return network

    def tokenizer(self) -> Any:
        """Its tokenizer."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(
            self.folder, local_files_only=True, trust_remote_code=self.trust_remote_code
        )

    def image_processor(self, *names: str) -> Any:
        """Its image processor: the first of these classes that the installed transformers has.

        The picture part alone is loaded, never the whole processor: the video part of some families needs torchvision.
        """
        import transformers

        found = next((name for name in names if hasattr(transformers, name)), names[-1])
        return getattr(transformers, found).from_pretrained(self.folder, local_files_only=True)

    # -- the network --------------------------------------------------------------------------------------------------

    def _has_weights(self) -> bool:
        files = [path.name for path in self.folder.iterdir()]
        require_safetensors(self.name, files)
        return any(is_weights(file) for file in files)

    def _loaded(self, architecture: Any, config: Any) -> Any:
        options: dict[str, Any] = {}
        if self.quantization != "none":
            options["quantization_config"] = quantization_config(self.quantization, self.dtype)
        if self.quantization.startswith("bitsandbytes") or config_quantized(self.config):
            options["device_map"] = {"": self.device}  # these cannot be moved afterwards
        network = architecture.from_pretrained(
            self.folder, config=config, dtype=self.dtype, local_files_only=True, use_safetensors=True,
            attn_implementation=config._attn_implementation, **options,
        )  # fmt: skip
        return network.eval() if "device_map" in options else network.to(self.device).eval()

    def _random(self, architecture: Any, config: Any) -> Any:
        torch.manual_seed(self.seed)
        with torch.device("cpu"):  # equal seeds: equal weights on every device
            network = architecture(config)
        return network.to(self.device, self.dtype).eval()


def config_quantized(config: dict[str, Any]) -> bool:
    """Whether the checkpoint was quantised before it was published."""
    return bool(config.get("quantization_config"))
