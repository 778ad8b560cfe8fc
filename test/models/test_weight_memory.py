# SPDX-License-Identifier: Apache-2.0
"""Bytes of weights from a config alone, and the refusal before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch
from support.tiny_models import qwen2_5_vl
from transformers import Qwen2_5_VLForConditionalGeneration

from ros_kvstream.errors import ModelError
from ros_kvstream.models import weight_memory
from ros_kvstream.models.quantization import QUANTIZATIONS
from ros_kvstream.models.weight_memory import check_memory, count_parameters, free_bytes, skeleton, weight_bytes

CPU = torch.device("cpu")


@pytest.mark.parametrize("tied", [False, True])
def test_the_skeleton_counts_what_the_loaded_network_has_tied_weights_once(tied: bool) -> None:
    config = qwen2_5_vl().network.config
    config.tie_word_embeddings = config.text_config.tie_word_embeddings = tied
    loaded = Qwen2_5_VLForConditionalGeneration(config)
    bare = skeleton(Qwen2_5_VLForConditionalGeneration, config)
    assert next(bare.parameters()).device.type == "meta"
    assert count_parameters(bare) == sum({p.data_ptr(): p.numel() for p in loaded.parameters()}.values())
    assert weight_bytes(bare, torch.bfloat16) == 2 * count_parameters(bare)


def test_quantized_weights_are_counted_in_their_bits_and_the_vision_tower_in_full() -> None:
    network = qwen2_5_vl().network
    linear = sum(
        module.weight.numel()
        for module in network.model.language_model.modules()
        if isinstance(module, torch.nn.Linear)
    )
    full = weight_bytes(network, torch.bfloat16)
    assert weight_bytes(network, torch.bfloat16, QUANTIZATIONS["torchao-int8"]) == full - linear
    four = weight_bytes(network, torch.bfloat16, QUANTIZATIONS["bitsandbytes-nf4"])
    assert full - 1.5 * linear < four < full - 1.4 * linear


def test_too_little_memory_is_refused_with_figures_and_with_what_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    network = qwen2_5_vl().network
    needed = weight_bytes(network, torch.float32)
    monkeypatch.setattr(weight_memory, "free_bytes", lambda device: needed + 1000)
    check_memory("m", network, torch.float32, CPU, quantization="none", beside=1000)
    with pytest.raises(ModelError, match=r"'m'.*parameters in float32.*free on cpu.*dtype = bfloat16,"):
        check_memory("m", network, torch.float32, CPU, quantization="none", beside=1001)
    with pytest.raises(ModelError) as caught:
        check_memory("m", network, torch.bfloat16, CPU, quantization="none", beside=needed)
    assert "would fit" not in str(caught.value) and "lower memory.budget_mib" in str(caught.value)


def test_free_memory_of_a_container_is_its_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit, used = tmp_path / "memory.max", tmp_path / "memory.current"
    monkeypatch.setattr(weight_memory, "CGROUP_LIMITS", ((limit, used),))
    machine = psutil.virtual_memory().available
    assert abs(free_bytes(CPU) - machine) < 2 << 30  # no such files
    limit.write_text("max\n"), used.write_text("5\n")
    assert free_bytes(CPU) > 1000
    limit.write_text("1000\n")
    assert free_bytes(CPU) == 995
    used.write_text("2000\n")
    assert free_bytes(CPU) == 0
