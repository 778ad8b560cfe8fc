# SPDX-License-Identifier: Apache-2.0
"""Load a model by name: the one in this package, a local folder, or a hub id."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import torch

from ros_kvstream.errors import KvStreamError, ModelError
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.models.checkpoint import Checkpoint, one_line
from ros_kvstream.models.devices import resolve_device, resolve_dtype
from ros_kvstream.models.families import family_of
from ros_kvstream.models.hub import Report, download, has_weights
from ros_kvstream.models.quantization import require_packages, stored_bits
from ros_kvstream.settings import ModelSettings

TINY_FOLDER = Path(__file__).parent / "tiny"
"""The small trained model of the Qwen2.5-VL architecture that this package ships."""

log = logging.getLogger(__name__)


def find_folder(path: str, *, code: bool = False) -> tuple[Path, bool]:
    """Find the folder of a model's config, and whether the model is on a hub. A local folder needs no network.

    :raises ModelError: when there is no such folder, or the hub cannot be reached or does not know the model.
    """
    folder = TINY_FOLDER if path == "tiny" else Path(path).expanduser()
    if path == "tiny" or path.startswith((".", "/", "~")) or folder.is_dir():
        if not folder.is_dir():
            raise ModelError(f"model = {path!r}: no such folder. Give 'tiny', an existing folder or a hub id.")
        return folder, False
    return download(path, weights=False, code=code), True


def read_config(path: str, folder: Path) -> dict[str, Any]:
    """Read the config.json in a folder; raises ModelError where it is missing or broken."""
    file = folder / "config.json"
    if not file.is_file():
        has_weights(path, [found.name for found in folder.iterdir()])  # an adapter alone has no config
        raise ModelError(f"model = {path!r}: the folder has no config.json, so it is not a transformers model.")
    try:
        return dict(json.loads(file.read_text()))
    except (ValueError, TypeError) as error:
        raise ModelError(f"model = {path!r}: its config.json cannot be read: {error}") from error


def load_model(
    settings: ModelSettings, seed: int = 0, *, beside: int = 0, report: Report = log.info
) -> VideoLanguageModel:
    """Load a model of any supported family.

    :param beside: bytes that must stay free on the device in addition to the weights (the memory's budget).
    :param report: receives a line of progress for each file of weights that is fetched from a hub.
    :raises ModelError: before anything is loaded; states what is supported, what is missing, or the memory needed.
    """
    model = _open(settings, seed=seed, beside=beside, report=report)
    if not model.trained:
        log.warning("model = %r has no weights: they are random, and its answers are meaningless.", settings.path)
    return model


def describe_model(settings: ModelSettings) -> VideoLanguageModel:
    """Open a model without its weights, for its shapes, grids and tokens; it cannot be run.

    Reads only the config, the tokenizer and the image processor; raises as :func:`load_model` does.
    """
    return _open(settings, weights=False)


def _open(settings: ModelSettings, *, weights: bool = True, **options: Any) -> VideoLanguageModel:
    """Check the settings against the checkpoint before anything is loaded, then open it."""
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
    dtype = resolve_dtype(settings.dtype, device, config)
    device = device if weights else torch.device("meta")
    try:
        return family.model_class().open(Checkpoint(settings, folder, config, family, device, dtype, on_hub, **options))
    except KvStreamError:
        raise
    except Exception as error:  # the libraries raise anything for a checkpoint they do not expect
        raise ModelError(f"model = {settings.path!r} could not be loaded: {one_line(error)}") from error
