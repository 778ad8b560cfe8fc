# SPDX-License-Identifier: Apache-2.0
"""Folders of models as people have them: good ones load in every layout of keys, others are refused by name."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from support.model_folders import folder_without_weights, save_model, save_random_model
from support.tiny_families import EVERY_FAMILY

from ros_kvstream.errors import ModelError
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.models.loading import describe_model, load_model
from ros_kvstream.settings import ModelSettings

Weights = dict[str, torch.Tensor]
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("saved"))


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def load(folder: Path) -> VideoLanguageModel:
    return load_model(ModelSettings(path=str(folder), device="cpu"))


def rewrite(folder: Path, change: Callable[[Weights], Weights]) -> None:
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS, {"format": "pt"})


def edit_config(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


# -- tensors ----------------------------------------------------------------------------------------------------------


def published(weights: Weights) -> Weights:
    """Names as on the hub: the LLaVA families' towers have ``vision_model`` there, which transformers 5 leaves out."""
    full, short = "vision_tower.vision_model.", "vision_tower."
    return {name.replace(full, short).replace(short, full): tensor for name, tensor in weights.items()}


@EVERY_FAMILY
@pytest.mark.parametrize("layout", ["published", "modules"])
def test_good_weights_load_in_every_layout_of_keys(make: Callable[..., Any], layout: str, tmp_path: Path) -> None:
    model = make(layers=1)
    save_model(model, tmp_path)
    own: Weights = {name: tensor.clone() for name, tensor in model.network.state_dict().items()}
    rewrite(tmp_path, published if layout == "published" else lambda _: own)
    loaded: Any = load(tmp_path)
    assert loaded.trained
    found = loaded.network.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in own.items())


@EVERY_FAMILY
def test_a_tied_head_is_not_missed_and_an_untied_one_is(make: Callable[..., Any], tmp_path: Path) -> None:
    save_model(make(layers=1), tmp_path)
    rewrite(tmp_path, lambda all_: {name: tensor for name, tensor in all_.items() if "lm_head" not in name})
    with pytest.raises(ModelError, match=r"1 of \d+ tensors are missing from its weights, e\.g\. lm_head\.weight"):
        load(tmp_path)

    def tie(config: dict[str, Any]) -> None:
        for part in (config, config["text_config"]):
            part["tie_word_embeddings"] = True

    edit_config(tmp_path, tie)
    network = load(tmp_path).network  # type: ignore[attr-defined]
    assert torch.equal(network.lm_head.weight, network.get_input_embeddings().weight)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda name: name.replace("visual.", "vision."), r"\d\d of \d+ .*e\.g\. \S*visual\..*unknown names.*vision\."),
        (lambda name: f"base.{name}", r"(\d+) of \1 tensors are missing.*unknown names, e\.g\. base\."),
        (lambda name: "" if name.endswith("layers.1.self_attn.q_proj.weight") else name, r"1 of \d+ .*q_proj\.weight"),
    ],
    ids=["tower renamed", "all prefixed", "one removed"],
)  # fmt: skip
def test_weights_that_lack_tensors_are_refused_with_their_number(
    folder: Path, change: Callable[[str], str], said: str
) -> None:
    rewrite(folder, lambda weights: {change(name): tensor for name, tensor in weights.items() if change(name)})
    with pytest.raises(ModelError, match=said):
        load(folder)


# -- files of weights -------------------------------------------------------------------------------------------------


def without_shards(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": shards[0], "b": shards[1], "c": shards[1]}}))


def without_one_shard(folder: Path) -> None:
    shutil.copy(folder / WEIGHTS, folder / "model-00002-of-00002.safetensors")
    without_shards(folder)


def renamed(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / WEIGHTS).rename(folder / name)


def adapter(folder: Path) -> None:
    renamed("adapter_model.safetensors")(folder)
    (folder / "adapter_config.json").write_text("{}")


def adapter_alone(folder: Path) -> None:
    adapter(folder)
    (folder / "config.json").unlink()


def pointer(folder: Path) -> None:
    (folder / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (without_shards, "incomplete download: 2 of the 2 files.*model-00001-of-00002"),
        (without_one_shard, "incomplete download: 1 of the 2 files.*model-00001-of-00002"),
        (renamed("model-00001-of-00002.safetensors"), "incomplete download: it has model-00001.* no .*index.json"),
        (lambda folder: (folder / INDEX).write_text("{") and (folder / WEIGHTS).unlink(), f"{INDEX} cannot be used"),
        (renamed("model.safetensors.incomplete"), "incomplete download.*model.safetensors.incomplete"),
        (renamed("pytorch_model.safetensors"), "it has pytorch_model.safetensors, but neither model.safetensors"),
        (renamed("consolidated.safetensors"), "it has consolidated.safetensors, but neither model.safetensors"),
        (renamed("model-q4.gguf"), "it has model-q4.gguf, but neither model.safetensors"),
        (renamed("pytorch_model.bin"), "pytorch_model.bin.*only safetensors"),
        (adapter, "an adapter .*merge it into its base"),
        (adapter_alone, "an adapter .*merge it into its base"),
        (pointer, "incomplete download: model.safetensors is a Git LFS pointer.*git lfs pull"),
    ],
)  # fmt: skip
def test_a_folder_with_something_like_weights_never_gets_random_ones(
    folder: Path, damage: Callable[[Path], object], said: str
) -> None:
    damage(folder)
    for open_model in (load_model, describe_model):
        with pytest.raises(ModelError, match=said):
            open_model(ModelSettings(path=str(folder), device="cpu"))


def test_weights_in_several_files_load(folder: Path) -> None:
    expected = load_file(folder / WEIGHTS)
    shard = "model-00001-of-00001.safetensors"
    (folder / WEIGHTS).rename(folder / shard)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(expected, shard)}))
    assert load(folder).trained


def test_random_weights_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ros_kvstream"):
        assert not load(folder_without_weights(tmp_path)).trained
    assert f"{str(tmp_path)!r} has no weights: they are random" in caplog.text


# -- other files ------------------------------------------------------------------------------------------------------


def written(name: str, content: str) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        if name == "chat_template.json":
            (folder / "chat_template.jinja").unlink(missing_ok=True)
        (folder / name).write_text(content)

    return write


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "tokenizer_config.json").unlink(), "incomplete download: it has no tokenizer_config"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json or tokenizer_config.json cannot be used"),
        (written("tokenizer.json", "{"), "tokenizer.json or tokenizer_config.json cannot be used"),
        (written("preprocessor_config.json", "{"), "preprocessor_config.json cannot be used"),
        (written("chat_template.json", "{}"), "chat_template.json cannot be used: KeyError: 'chat_template'"),
        (written("chat_template.json", "[1]"), "chat_template.json cannot be used"),
        (written("chat_template.json", "{"), "chat_template.json cannot be used"),
        (written("chat_template.jinja", "{% for m in %}"), "chat_template.jinja cannot be used: TemplateSyntaxError"),
        (written("chat_template.jinja", "{{ messages.a.b }}"), "chat_template.jinja cannot be used: UndefinedError"),
        (written("chat_template.jinja", "{{ 'a' + 1 }}"), "chat_template.jinja cannot be used: TypeError"),
        (written("chat_template.jinja", "no place"), "chat_template.jinja has no single place for a video"),
    ],
)  # fmt: skip
def test_a_broken_file_is_named_in_one_sentence(folder: Path, damage: Callable[[Path], object], said: str) -> None:
    damage(folder)
    with pytest.raises(ModelError, match=said) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


ROPE = ("rope_scaling", "rope_parameters", "rope_theta")


@pytest.mark.parametrize(
    ("rope", "said"),
    [
        ({"rope_scaling": None}, r"config.json: mrope_section in rope_scaling is .*add up to half.*, 8\."),
        ({}, "config.json: mrope_section in rope_scaling is"),
        ({"rope_scaling": {"type": "mrope"}}, "config.json: mrope_section in rope_scaling is"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [4, 2, 1]}}, r"mrope_section .* is \[4, 2, 1\]"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": "a"}}, "mrope_section in rope_scaling is a"),
        ({"rope_scaling": {"type": "unheard-of", "mrope_section": [4, 2, 2]}}, "config.json cannot be used"),
        ({"rope_scaling": [1]}, "config.json cannot be used"),
    ],
)  # fmt: skip
def test_rotary_settings_that_do_not_fit_are_refused(folder: Path, rope: dict[str, Any], said: str) -> None:
    def change(config: dict[str, Any]) -> None:
        for part in (config, config["text_config"]):
            for name in ROPE:
                part.pop(name, None)
            part.update(rope)

    edit_config(folder, change)
    with pytest.raises(ModelError, match=said):
        load(folder)


@EVERY_FAMILY
def test_rotary_settings_as_transformers_5_writes_them_are_read_or_refused(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    model = make(layers=1)
    save_model(model, tmp_path)
    sections = {"mrope_section": [4, 2, 2]} if "qwen" in model.family else {}

    def change(config: dict[str, Any]) -> None:
        for part in (config, config["text_config"]):
            for name in ROPE:
                part.pop(name, None)
        config["text_config"]["rope_parameters"] = {"rope_type": "default", "rope_theta": 5e5, **sections}

    edit_config(tmp_path, change)
    if int(transformers.__version__.split(".")[0]) < 5:
        with pytest.raises(ModelError, match="rope_theta in rope_parameters alone.*install transformers 5"):
            load(tmp_path)
    else:
        frequencies = load(tmp_path).language_model.rotary_emb.inv_freq  # type: ignore[attr-defined]
        assert float(frequencies[1]) == pytest.approx(5e5 ** (-1 / 8))
