# SPDX-License-Identifier: Apache-2.0
"""The external expert: an image-text encoder that ranks frames by similarity of picture and question."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from ros_kvstream.errors import ModelError
from ros_kvstream.memory.archive.archive import Archive

Vector = NDArray[np.float32]


class ExternalEncoder(Protocol):
    """Encodes pictures and questions as vectors whose dot product is their similarity."""

    name: str
    size: int
    """Numbers in a vector."""
    picture_side: int
    """Side of its input in pixels; pending pictures are stored at this size."""

    def embed_image(self, picture: NDArray[np.uint8]) -> Vector:
        """RGB uint8 [height, width, 3] of any size to a float32 vector [size]."""
        ...

    def embed_text(self, text: str) -> Vector:
        """A question to a float32 vector [size]."""
        ...


def external_scores(archive: Archive, query: Vector) -> NDArray[np.float32]:
    """Score of every archive slot, float32 [slots]; -inf where a frame has no embedding yet."""
    table, step = archive.table, archive.plan.index_chunk
    known = table.frames["live"] & table.frames["embedded"]
    vector = torch.from_numpy(np.ascontiguousarray(query, dtype=np.float32))
    products = torch.empty(archive.plan.frames)
    for start in range(0, archive.plan.frames, step):
        rows = slice(start, start + step)
        torch.mv(table.embeddings[rows].float(), vector, out=products[rows])
    scores: NDArray[np.float32] = np.where(known, products.numpy(), np.float32(-np.inf))
    return scores


class TransformersEncoder:
    """A CLIP or SigLIP model that transformers loads, by hub id or local folder."""

    def __init__(self, path: str, device: str = "cpu") -> None:
        """Load the model; raises ModelError when it cannot be found or is not an image-text encoder."""
        from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

        self.name = path
        try:
            self._model: Any = AutoModel.from_pretrained(path).to(device).eval()
            self._tokenizer: Any = AutoTokenizer.from_pretrained(path)
            self._processor: Any = AutoImageProcessor.from_pretrained(path, use_fast=False)
        except (OSError, ValueError, ImportError) as error:
            raise ModelError(
                f"retrieval.external = {path!r} cannot be loaded ({error}). Set it to the hub id or folder of a CLIP "
                "or SigLIP model, 'tiny', 'imagenet', or '' for none."
            ) from error
        if not hasattr(self._model, "get_image_features") or not hasattr(self._model, "get_text_features"):
            raise ModelError(f"retrieval.external = {path!r} is not an image-text encoder: use a CLIP or SigLIP model")
        self._device = device
        self.picture_side = int(self._model.config.vision_config.image_size)
        self.size = len(self.embed_text("size"))

    @torch.inference_mode()
    def embed_image(self, picture: NDArray[np.uint8]) -> Vector:
        """RGB uint8 [height, width, 3] to a unit vector [size]."""
        inputs = self._processor(images=[picture], input_data_format="channels_last", return_tensors="pt")
        inputs = inputs.to(self._device)
        return _unit(self._model.get_image_features(**inputs))

    @torch.inference_mode()
    def embed_text(self, text: str) -> Vector:
        """A question to a unit vector [size]; text for SigLIP is padded, as in its training."""
        padding = "max_length" if "siglip" in self._model.config.model_type else True
        inputs = self._tokenizer([text], padding=padding, truncation=True, return_tensors="pt").to(self._device)
        return _unit(self._model.get_text_features(**inputs))


def _unit(features: Any) -> Vector:
    features = getattr(features, "pooler_output", features)
    vector: Vector = functional.normalize(features[0].float(), dim=0).cpu().numpy()
    return vector


def make_encoder(name: str, device: str = "cpu") -> ExternalEncoder | None:
    """The encoder named by ``retrieval.external``: "" (none), "tiny", "imagenet", a hub id or a folder."""
    if not name:
        return None
    if name == "tiny":
        from ros_kvstream.retrieval.tiny_encoder import TinyEncoder

        return TinyEncoder.load()
    if name == "imagenet":
        from ros_kvstream.retrieval.imagenet_encoder import ImageNetEncoder

        return ImageNetEncoder()
    return TransformersEncoder(name, device)
