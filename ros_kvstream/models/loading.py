"""From a model's name to a loaded model: the one in this package, a local folder, or a hub id."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from ros_kvstream.errors import ModelError
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.models.checkpoint import Checkpoint
from ros_kvstream.models.devices import resolve_device, resolve_dtype
from ros_kvstream.models.families import family_of
from ros_kvstream.models.hub import Report, download
from ros_kvstream.models.quantization import require_packages, stored_bits
from ros_kvstream.settings import ModelSettings

TINY_FOLDER = Path(__file__).parent / "tiny"
"""The small trained model of the Qwen2.5-VL architecture that this package ships."""

log = logging.getLogger(__name__)


def find_folder(path: str, *, code: bool = False) -> tuple[Path, bool]:
    """The folder of a model's config, and whether the model is on a hub. A local folder is read without a network.

    :raises ModelError: when there is no such folder, or the hub cannot be reached or does not know the model.
    """
    folder = TINY_FOLDER if path == "tiny" else Path(path).expanduser()
    if path == "tiny" or path.startswith((".", "/", "~")) or folder.is_dir():
        if not folder.is_dir():
            raise ModelError(f"model = {path!r}: no such folder. Give 'tiny', an existing folder or a hub id.")
        return folder, False
    return download(path, weights=False, code=code), True


def read_config(path: str, folder: Path) -> dict[str, Any]:
    """The config.json in a folder; raises ModelError where it is missing or broken."""
    file = folder / "config.json"
    if not file.is_file():
        raise ModelError(f"model = {path!r}: the folder has no config.json, so it is not a transformers model.")
    try:
        return dict(json.loads(file.read_text()))
    except (ValueError, TypeError) as error:
        raise ModelError(f"model = {path!r}: its config.json cannot be read: {error}") from error


def load_model(
    settings: ModelSettings, seed: int = 0, *, beside: int = 0, report: Report = log.info
) -> VideoLanguageModel:
    """Load a model of any supported family.

    :param beside: bytes that must stay free on the device beside the weights (the memory's own budget).
    :param report: gets a line of progress for each file of weights that is fetched from a hub.
    :raises ModelError: names what is supported, what is missing, or how much memory is; before anything is loaded.
    """
    checkpoint = open_checkpoint(settings, seed)
    checkpoint.beside, checkpoint.report = beside, report
    return _opened(checkpoint)


def describe_model(settings: ModelSettings) -> VideoLanguageModel:
    """A model whose shapes, grids and tokens can be asked for, without its weights: it cannot be run.

    Reads the config, the tokenizer and the image processor alone; raises as :func:`load_model` does.
    """
    checkpoint = open_checkpoint(settings)
    checkpoint.device = torch.device("meta")
    return _opened(checkpoint)


def open_checkpoint(settings: ModelSettings, seed: int = 0) -> Checkpoint:
    """What is known before anything is loaded; raises ModelError for what cannot work."""
    folder, on_hub = find_folder(settings.path, code=settings.trust_remote_code)
    config = read_config(settings.path, folder)
    family = family_of(settings.path, config)
    device = resolve_device(settings.device)
    if settings.quantization != "none":
        require_packages(settings.quantization)
        if bits := stored_bits(config):
            raise ModelError(
                f"quantization = {settings.quantization!r}: the checkpoint {settings.path!r} already has its weights "
                f"in {bits} bits. Set quantization = none."
            )
    return Checkpoint(
        name=settings.path,
        folder=folder,
        on_hub=on_hub,
        config=config,
        family=family,
        device=device,
        dtype=resolve_dtype(settings.dtype, device, config),
        attention=settings.attention,
        quantization=settings.quantization,
        max_frame_pixels=settings.max_frame_pixels,
        trust_remote_code=settings.trust_remote_code,
        check_memory=settings.check_memory,
        seed=seed,
    )


def _opened(checkpoint: Checkpoint) -> VideoLanguageModel:
    try:
        model: VideoLanguageModel = checkpoint.family.open().open_model(checkpoint)
    except (OSError, ValueError, RuntimeError, ImportError, NotImplementedError, SafetensorError) as error:
        raise ModelError(f"model = {checkpoint.name!r} could not be loaded: {error}") from error
    return model
