# SPDX-License-Identifier: Apache-2.0
"""Device, number format and attention are what is there, or an error says what is not and what to do."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest
import torch

from ros_kvstream.errors import ModelError
from ros_kvstream.models.devices import resolve_attention, resolve_device, resolve_dtype

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
BOTH = SimpleNamespace(_supports_sdpa=True, _supports_flash_attn=True)


def with_gpus(monkeypatch: pytest.MonkeyPatch, count: int, capability: tuple[int, int] = (8, 7)) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)


def with_flash(monkeypatch: pytest.MonkeyPatch, installed: bool) -> None:
    find = importlib.util.find_spec
    flash = object() if installed else None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: flash if name == "flash_attn" else find(name))


def test_auto_takes_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 0)
    assert resolve_device("auto") == CPU
    with_gpus(monkeypatch, 2)
    assert resolve_device("auto") == torch.device("cuda")
    assert resolve_device("cpu") == CPU
    assert resolve_device("cuda:1") == torch.device("cuda:1")


def test_a_device_that_is_not_there_is_named_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 2)
    with pytest.raises(ModelError, match=r"device = 'cuda:2'.*2 CUDA.*cuda:0, cuda:1"):
        resolve_device("cuda:2")


@pytest.mark.parametrize(("build", "said"), [(None, "built without CUDA"), ("12.8", "no CUDA device is visible")])
def test_no_cuda_says_whether_torch_or_the_machine_lacks_it(
    monkeypatch: pytest.MonkeyPatch, build: str | None, said: str
) -> None:
    with_gpus(monkeypatch, 0)
    monkeypatch.setattr(torch.version, "cuda", build)
    with pytest.raises(ModelError, match=rf"device = 'cuda'.*{said}.*device = auto or cpu"):
        resolve_device("cuda")


@pytest.mark.parametrize(
    ("config", "capability", "expected"),
    [
        ({"dtype": "bfloat16"}, (8, 7), torch.bfloat16),
        ({"torch_dtype": "bfloat16"}, (8, 0), torch.bfloat16),
        ({"text_config": {"torch_dtype": "float16"}}, (8, 7), torch.float16),
        ({"dtype": "bfloat16"}, (7, 2), torch.float16),
        ({}, (9, 0), torch.float32),
    ],
)
def test_auto_type_on_a_gpu_is_the_checkpoints_own_and_one_that_it_computes_in(
    monkeypatch: pytest.MonkeyPatch, config: dict, capability: tuple[int, int], expected: torch.dtype
) -> None:
    with_gpus(monkeypatch, 1, capability)
    assert resolve_dtype("auto", GPU, config) == expected
    assert resolve_dtype("auto", CPU, config) == torch.float32
    assert resolve_dtype("float16", CPU, config) == torch.float16


def test_a_checkpoint_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(ModelError, match="'mxfp4'"):
        resolve_dtype("auto", GPU, {"dtype": "mxfp4"})


def test_attention_is_the_best_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with_flash(monkeypatch, True)
    with_gpus(monkeypatch, 1, (7, 2))
    assert resolve_attention("auto", GPU, torch.float16, BOTH) == "sdpa"
    with_gpus(monkeypatch, 1, (8, 7))
    assert resolve_attention("auto", GPU, torch.bfloat16, BOTH) == "flash_attention_2"
    assert resolve_attention("auto", GPU, torch.float32, BOTH) == "sdpa"
    assert resolve_attention("auto", CPU, torch.bfloat16, BOTH) == "sdpa"
    assert resolve_attention("auto", CPU, torch.float32, SimpleNamespace(_supports_sdpa=False)) == "eager"
    assert resolve_attention("eager", GPU, torch.bfloat16, BOTH) == "eager"
    with_flash(monkeypatch, False)
    assert resolve_attention("auto", GPU, torch.bfloat16, BOTH) == "sdpa"


def test_flash_attention_that_cannot_be_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with_flash(monkeypatch, False)
    with_gpus(monkeypatch, 1)
    with pytest.raises(ModelError, match="pip install flash-attn"):
        resolve_attention("flash_attention_2", GPU, torch.bfloat16, BOTH)
    with_flash(monkeypatch, True)
    with pytest.raises(ModelError, match="float32 on cpu.*dtype = bfloat16"):
        resolve_attention("flash_attention_2", CPU, torch.float32, BOTH)
