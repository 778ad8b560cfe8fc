# SPDX-License-Identifier: Apache-2.0
"""Weights in the CPU kernels' own layout: the same results, whatever is replaced, and nothing where it cannot be."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import family_checks as checks
from support.tiny_families import EVERY_FAMILY
from torch import nn

from ros_kvstream.models import packed_weights
from ros_kvstream.models.packed_weights import PackedGatedMlp, PackedLinear, pack_weights, packing_works

needs_kernels = pytest.mark.skipif(
    not packing_works(torch.float32), reason="this torch has no such kernels on this processor"
)


@needs_kernels
@EVERY_FAMILY
def test_a_packed_family_answers_like_the_plain_one(make: Callable[..., Any]) -> None:
    plain, packed = make(seed=3), make(seed=3)
    linears = [module for module in packed.network.modules() if type(module) is nn.Linear]
    assert 0 < pack_weights(packed.network, least=1) <= len(linears)
    logits = []
    for model in (plain, packed):
        memory = checks.stream_of(model)
        checks.feed(memory, checks.frames_of(3, 4), range(4))
        logits.append(checks.question_logits(memory))
        logits.append(memory.ask(checks.QUESTION).text)
    assert (logits[0] - logits[2]).abs().max() < 1e-4
    assert logits[1] == logits[3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(96,), (1, 96), (3, 96), (4, 96), (2, 5, 96), (1, 33, 96)])
@torch.inference_mode()
def test_a_packed_linear_gives_what_the_linear_gives(dtype: torch.dtype, bias: bool, shape: tuple[int, ...]) -> None:
    if not packing_works(dtype):
        pytest.skip(f"this torch has no such kernels for {dtype} on this processor")
    torch.manual_seed(1)
    plain, hidden = nn.Linear(96, 72, bias=bias).to(dtype), torch.randn(shape).to(dtype)
    ours, theirs = PackedLinear(plain)(hidden), plain(hidden)
    assert ours.shape == theirs.shape and ours.dtype == dtype
    assert torch.allclose(ours, theirs, atol=1e-5 if dtype == torch.float32 else 2e-2)


class Gated(nn.Module):
    """As the decoders of transformers have it."""

    def __init__(self, activation: nn.Module, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(32, 48, bias=bias), nn.Linear(32, 48, bias=bias)
        self.down_proj, self.act_fn = nn.Linear(48, 32, bias=bias), activation

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(hidden)) * self.up_proj(hidden))


class Net(nn.Module):
    """A network of transformers, as far as packing looks at it."""

    dtype = torch.float32

    def __init__(self, activation: nn.Module, bias: bool = False) -> None:
        super().__init__()
        self.embedding, self.mlp, self.head = nn.Embedding(10, 32), Gated(activation, bias), nn.Linear(32, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.mlp(self.embedding(ids)))


@needs_kernels
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_a_gated_mlp_is_fused_where_its_activation_is_silu_and_only_there(bias: bool) -> None:
    for activation, kind in ((nn.SiLU(), PackedGatedMlp), (nn.GELU(), Gated)):
        net, ids = Net(activation, bias), torch.arange(7)[None]
        before = net(ids)
        assert pack_weights(net, least=1) == 4
        assert type(net.mlp) is kind
        assert torch.allclose(net(ids), before, atol=1e-5)
        assert torch.allclose(net(ids[:, :1]), before[:, :1], atol=1e-5), "a decode step has one row"


@needs_kernels
@torch.inference_mode()
def test_tied_and_small_weights_stay_as_they_are() -> None:
    net = Net(nn.SiLU())
    net.head.weight = net.embedding.weight
    assert pack_weights(net, least=32 * 48 + 1) == 0
    assert pack_weights(net, least=1) == 3
    assert type(net.head) is nn.Linear and net.head.weight is net.embedding.weight


@needs_kernels
def test_plain_weights_are_freed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    net, alive = nn.Sequential(*(nn.Linear(8, 8) for _ in range(5)), nn.Embedding(3, 8)), []
    net.dtype = torch.float32  # type: ignore[assignment]
    weights: list[weakref.ref[torch.Tensor]] = []

    def packed(source: nn.Linear) -> nn.Module:
        weights.append(weakref.ref(source.weight))
        alive.append(sum(weight() is not None for weight in weights))
        return nn.Identity()

    monkeypatch.setattr(packed_weights, "PackedLinear", packed)
    monkeypatch.setattr(packed_weights, "_is_gated_mlp", lambda module: False)
    assert pack_weights(net, least=1) == 5
    gc.collect()
    assert max(alive) <= 2, "this one, and at most the one before"
    assert not any(weight() is not None for weight in weights)


@needs_kernels
@torch.inference_mode()
def test_a_copy_of_a_packed_network_shares_its_weights() -> None:
    net, ids = Net(nn.SiLU()), torch.arange(5)[None]
    pack_weights(net, least=1)
    twin = copy.deepcopy(net)
    assert torch.equal(net(ids), twin(ids))
    assert twin.head is net.head


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_network_is_packed_where_the_kernels_work_for_its_type_and_left_alone_elsewhere(
    dtype: torch.dtype, device: str
) -> None:
    net = Net(nn.SiLU()).to(device, dtype)
    net.dtype = dtype  # type: ignore[misc]
    works = device == "cpu" and dtype != torch.float16 and packing_works(dtype)
    assert pack_weights(net, least=1) == (4 if works else 0)
    assert type(net.mlp) is (PackedGatedMlp if works else Gated)


@pytest.mark.parametrize("fault", ["missing", "wrong"])
def test_without_kernels_that_give_the_known_result_nothing_is_replaced(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    def product(self: PackedLinear, rows: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        if fault == "missing":
            raise AttributeError("no such operator")
        return torch.zeros(len(rows), self.out_features)

    monkeypatch.setattr(packed_weights, "packing_works", packing_works.__wrapped__)
    monkeypatch.setattr(PackedLinear, "product", product)
    net = Net(nn.SiLU())
    assert pack_weights(net, least=1) == 0
    assert type(net.head) is nn.Linear
