"""From a model's name to a loaded model: the one in this package, a local folder, or a hub id."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from ros_kvstream.errors import ModelError
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.settings import ModelSettings

TINY_FOLDER = Path(__file__).parent / "tiny"
"""The small trained model of the Qwen2.5-VL architecture that this package ships."""

WEIGHTS_PATTERNS = ("*.safetensors",)


def _qwen2_5_vl(name: str, source: str, options: dict[str, Any]) -> VideoLanguageModel:
    from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration

    from ros_kvstream.models.qwen2_5_vl import Qwen25VL

    network, trained = _network(Qwen2_5_VLForConditionalGeneration, source, options)
    tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=options["local"])
    processor = _image_processor(source, options["local"])
    if options["max_frame_pixels"]:
        edge = max(options["max_frame_pixels"], (processor.patch_size * processor.merge_size) ** 2)
        processor.size = {"shortest_edge": min(processor.size["shortest_edge"], edge), "longest_edge": edge}
    return Qwen25VL(name, network, tokenizer, processor, trained=trained)


FAMILIES: dict[str, Callable[[str, str, dict[str, Any]], VideoLanguageModel]] = {"qwen2_5_vl": _qwen2_5_vl}
"""Supported families by the ``model_type`` of their config.json."""


def _image_processor(source: str, local: bool) -> Any:
    """The picture part of the processor alone: the video part of the Qwen families needs torchvision."""
    try:
        from transformers import Qwen2VLImageProcessorPil as Processor
    except ImportError:
        from transformers import Qwen2VLImageProcessor as Processor
    return Processor.from_pretrained(source, local_files_only=local)


def _network(architecture: Any, source: str, options: dict[str, Any]) -> tuple[Any, bool]:
    """Load weights, or make random ones from the config where a local folder has none; none on the meta device."""
    dtype, device, local = options["dtype"], options["device"], options["local"]
    has_weights = not local or any(any(Path(source).glob(pattern)) for pattern in WEIGHTS_PATTERNS)
    if has_weights and device.type != "meta":
        network = architecture.from_pretrained(source, dtype=dtype, local_files_only=local, use_safetensors=True)
        return network.to(device).eval(), True
    torch.manual_seed(options["seed"])
    config = architecture.config_class.from_pretrained(source, local_files_only=local)
    if dtype == "auto":
        dtype = (has_weights and getattr(config, "dtype", None)) or torch.float32
    with torch.device("meta" if device.type == "meta" else "cpu"):  # equal seeds: equal weights on every device
        network = architecture(config)
    return network.to(device, dtype).eval(), has_weights


def resolve_device(device: str) -> torch.device:
    """auto | cpu | cuda | cuda:N to a device; raises ModelError where it is not there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(f"device = {device!r}: this machine has no CUDA device. Use device = auto or cpu.")
    return torch.device(device)


def read_config(path: str) -> tuple[str, dict[str, Any], bool]:
    """Source to load from, the checkpoint's config, and whether it is a local folder.

    :raises ModelError: when there is no such folder, no config.json in it, or the hub cannot be reached.
    """
    folder = TINY_FOLDER if path == "tiny" else Path(path).expanduser()
    looks_local = path == "tiny" or path.startswith((".", "/", "~")) or folder.is_dir()
    if looks_local:
        if not folder.is_dir():
            raise ModelError(f"model = {path!r}: no such folder. Give 'tiny', an existing folder or a hub id.")
        if not (folder / "config.json").is_file():
            raise ModelError(f"model = {path!r}: the folder has no config.json, so it is not a transformers model.")
        return str(folder), json.loads((folder / "config.json").read_text()), True
    from transformers import PretrainedConfig

    try:
        config, _ = PretrainedConfig.get_config_dict(path)
    except OSError as error:
        raise ModelError(
            f"model = {path!r}: neither a folder here nor a model that the hub gave ({error}). "
            "Check the name and the network, or download it and give the folder."
        ) from error
    return path, config, False


def load_model(settings: ModelSettings, seed: int = 0) -> VideoLanguageModel:
    """Load a model of any supported family; raises ModelError that names what is supported."""
    return _open_model(settings, seed, weights=True)


def describe_model(settings: ModelSettings) -> VideoLanguageModel:
    """A model whose shapes, grids and tokens can be asked for, without its weights: it cannot be run.

    Reads the config, the tokenizer and the image processor alone; raises as :func:`load_model` does.
    """
    return _open_model(settings, 0, weights=False)


def _open_model(settings: ModelSettings, seed: int, *, weights: bool) -> VideoLanguageModel:
    source, config, local = read_config(settings.path)
    family = config.get("model_type", "")
    if family not in FAMILIES:
        raise ModelError(
            f"model = {settings.path!r} is of family {family!r}, which is not supported. "
            f"Supported: {', '.join(sorted(FAMILIES))}."
        )
    device = resolve_device(settings.device)
    dtype: Any = settings.dtype
    if dtype == "auto":
        dtype = torch.float32 if device.type == "cpu" else "auto"
    else:
        dtype = getattr(torch, dtype)
    options = {
        "local": local,
        "device": device if weights else torch.device("meta"),
        "dtype": dtype,
        "seed": seed,
        "max_frame_pixels": settings.max_frame_pixels,
    }
    try:
        return FAMILIES[family](settings.path, source, options)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"model = {settings.path!r} could not be loaded: {error}") from error
