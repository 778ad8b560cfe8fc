# SPDX-License-Identifier: Apache-2.0
"""The real-scale check, on a random small model: the arithmetic, and that weights fit the architecture exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from support import family_checks as checks
from support.tiny_models import qwen2_5_vl

from benchmarks import smollm2
from benchmarks.real_scale import (
    ANSWER,
    PRECISIONS,
    Scale,
    agreement,
    fill,
    logits_over,
    measure,
    show,
)
from ros_kvstream.errors import ModelError
from ros_kvstream.memory.policies import policy_names

PICTURES = checks.frames_of(0, 24)
SCALE = Scale(frames=24, answer_tokens=5, shares=(0.5, 0.25))


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return measure(qwen2_5_vl(seed=3), PICTURES, SCALE, Console(quiet=True))


def test_every_policy_and_precision_is_compared_and_shown(report: dict[str, Any]) -> None:
    assert set(report["policies"]) == set(policy_names()) - {"full"}
    assert set(report["precisions"]) == {*PRECISIONS, "bfloat16"}
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    console = Console(width=120)
    with console.capture() as shown:
        show(report, console)
    assert "infinipot_v" in shown.get() and "int4" in shown.get() and "no frames" in shown.get()


def test_policies_keep_the_share_that_was_asked_for(report: dict[str, Any]) -> None:
    for name, shares in report["policies"].items():
        for share, figures in shares.items():
            assert 0 < figures["kept"] <= float(share), name
            assert 0 <= figures["agreement"] <= 1 and figures["kl"] >= 0


def test_fewer_bits_take_fewer_bytes_and_differ_more(report: dict[str, Any]) -> None:
    found = report["precisions"]
    assert found["int4"]["bytes_ratio"] < found["int8"]["bytes_ratio"]
    assert found["bfloat16"]["bytes_ratio"] < 1
    assert found["int8"]["kl"] < found["int4"]["kl"]
    assert found["int8"]["kl"] < report["without_frames"]["kl"]


def test_the_full_cache_agrees_with_itself_and_not_with_one_without_frames() -> None:
    memory = fill(qwen2_5_vl(seed=4), PICTURES, SCALE)
    answer = memory.model.tokenize(ANSWER)[:5]  # type: ignore[attr-defined]
    expected = logits_over(memory, answer)
    assert agreement(expected, logits_over(memory, answer)) == {"agreement": 1.0, "kl": 0.0}
    assert agreement(expected, logits_over(memory, answer, hide_frames=True))["kl"] > 1e-4
    assert memory.arena.frame_slots_used == memory.arena.plan.frame_slots


def test_divergence_is_that_of_known_distributions() -> None:
    expected, found = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log()
    assert agreement(expected, found)["kl"] == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(2 / 3))


FIELDS = {
    "llama.embedding_length": 64, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2,
    "llama.feed_forward_length": 96, "llama.block_count": 2, "llama.context_length": 512, "llama.vocab_size": 50,
    "llama.rope.freq_base": 1e4, "llama.attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip


def test_a_llamas_weights_inside_the_architecture_give_the_same_logits() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2_5_VLForConditionalGeneration

    torch.manual_seed(0)
    config = smollm2.architecture(FIELDS)
    text = config.text_config
    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=50, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=True,
        )
    ).eval()  # fmt: skip
    for parameter in llama.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    qwen = Qwen2_5_VLForConditionalGeneration(config).eval()
    qwen.load_state_dict(smollm2.qwen_state(llama.state_dict(), text.num_hidden_layers), strict=False)
    ids = torch.randint(0, 50, (1, 20))
    positions = torch.arange(20).expand(3, 1, 20)
    with torch.inference_mode():
        theirs, ours = llama(ids).logits, qwen(input_ids=ids, position_ids=positions).logits
    assert theirs.std() > 0.1
    assert torch.allclose(theirs, ours, atol=1e-4)


def test_query_rows_in_pairs_come_back_as_halves() -> None:
    halves = torch.randn(4 * 16, 8)
    pairs = halves.view(4, 2, 8, 8).transpose(1, 2).reshape(64, 8)  # as converters to GGUF write them
    assert torch.equal(smollm2.halves_of_pairs(pairs, 4), halves)


def test_patches_are_named_by_their_colour() -> None:
    model = qwen2_5_vl(seed=1)
    model.__class__ = smollm2.PicturesInWords
    model.tokenize = lambda text: [list(smollm2.COLOURS).index(text.strip())]  # type: ignore[method-assign]
    picture = np.zeros((60, 80, 3), dtype=np.uint8)
    picture[:, 40:] = (220, 30, 30)
    tokens = model.encode_frames([picture])[0]
    words = model.embed([list(smollm2.COLOURS).index(name) for name in ("black", "red")])
    patches = tokens.embeddings.view(*smollm2.GRID, -1)
    assert torch.equal(patches[2, 0], words[0]) and torch.equal(patches[5, 7], words[1])


def test_weights_that_cannot_be_fetched_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2.subprocess, "run", lambda *_, **__: type("Failed", (), {"returncode": 1})())
    with pytest.raises(ModelError, match="--weights"):
        smollm2.find_weights(tmp_path / "none")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "some.gguf").touch()
    assert smollm2.find_weights(tmp_path / "here") == tmp_path / "here" / "some.gguf"
