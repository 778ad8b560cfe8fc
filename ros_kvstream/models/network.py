# SPDX-License-Identifier: Apache-2.0
"""A network of transformers behind the interface of base.py: everything that does not depend on the family."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ros_kvstream.errors import ModelError
from ros_kvstream.memory.arena import Arena
from ros_kvstream.memory.budget import CacheShape
from ros_kvstream.memory.rotary import Rotary
from ros_kvstream.models.attention import use_arena_attention
from ros_kvstream.models.base import PositionRange, VideoLanguageModel
from ros_kvstream.models.checkpoint import Checkpoint, one_line, template_file
from ros_kvstream.models.packed_weights import sample
from ros_kvstream.models.transformers_compat import arena_cache, cache_argument

QUESTION_MARKER = "kvstreamquestion"
"""Stands for the question while a chat template is split; a plain word, so that no template changes it."""


def rotary_of(embedding: Any, device: torch.device, axes: Tensor | None = None, *, relative: bool = False) -> Rotary:
    """Convert a language model's rotary embedding.

    :param embedding: its ``rotary_emb``; :param axes: int64 [head_dim / 2], None for a 1-D family; see Rotary.
    :raises ModelError: for a kind whose frequencies change with the length of the sequence.
    """
    kind = getattr(embedding, "rope_type", "default")
    if kind in ("dynamic", "longrope"):  # keys could not be unrotated
        raise ModelError(f"rotary embeddings of type {kind!r} change with the sequence's length: not supported")
    frequencies = embedding.inv_freq.float().to(device)
    axes = torch.zeros(len(frequencies), dtype=torch.int64) if axes is None else axes
    return Rotary(frequencies, axes.to(device), float(embedding.attention_scaling), relative)


def split_chat_template(tokenizer: Any, marker: str, media: str = "video") -> tuple[str, str, str]:
    """Split the chat template into the text before the frames, between frames and question, and after the question.

    :param marker: what the template puts in the place of a video or image; :param media: video | image.
    :raises ModelError: when the tokenizer has no chat template or the template has no place for it.
    """
    message = {"role": "user", "content": [{"type": media}, {"type": "text", "text": QUESTION_MARKER}]}
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError("the tokenizer has no chat template: use an instruction-tuned checkpoint")
    template = f"the chat template in {template_file(Path(tokenizer.name_or_path))}"
    try:
        text = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template can fail with anything
        raise ModelError(f"{template} cannot be used: {one_line(error)}") from error
    if text.count(marker) != 1 or text.count(QUESTION_MARKER) != 1:
        raise ModelError(f"{template} has no single place for a {media} ({marker}): {text!r}")
    before, rest = text.split(marker)
    between, after = rest.split(QUESTION_MARKER)
    return before, between, after


class NetworkModel(VideoLanguageModel):
    """A family on a network of transformers. A family adds layout, prompt and pictures."""

    decoder: ClassVar[str] = "language_model"
    """Name of the decoder in ``network.model``."""
    image_processors: ClassVar[tuple[str, ...]]
    """Classes of the image processor in transformers; the first that the installed version has is used."""

    def __init__(self, name: str, network: Any, tokenizer: Any, image_processor: Any, *, trained: bool = True) -> None:
        """:param network: a loaded model of the family's class in transformers."""
        self.name = name
        self.trained = trained
        self.network = network.eval()
        self.language_model = getattr(network.model, self.decoder)
        self.tokenizer = tokenizer
        self.image_processor = image_processor
        self.learned: tuple[Tensor, ...] = ()
        """Learned vectors [hidden] that stand between tokens and have no token id; -1 is the first, -2 the second."""
        text = self.language_model.config
        window = getattr(text, "sliding_window", None)
        if window and getattr(text, "use_sliding_window", True):
            raise ModelError(f"sliding_window = {window}: language models with sliding-window layers are not supported")
        self.device = next(network.parameters()).device
        self.shape = CacheShape(
            layers=text.num_hidden_layers,
            kv_heads=text.num_key_value_heads,
            head_dim=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
            dtype=network.dtype,
        )
        self.embedding_width = text.hidden_size
        self.position_limit = text.max_position_embeddings
        self.position_range = PositionRange(self.position_limit, "max_position_embeddings, trained length unknown")
        if self.trained_positions:
            longest = min(self.trained_positions, self.position_limit)
            self.position_range = PositionRange(longest, "trained length of the family")
        self.rotary = rotary_of(self.language_model.rotary_emb, self.device)
        self._cache_name = cache_argument(self.language_model)
        use_arena_attention(self.language_model)

    @classmethod
    def open(cls, checkpoint: Checkpoint) -> NetworkModel:
        """Load a checkpoint of this family."""
        tokenizer, processor = checkpoint.tokenizer(), checkpoint.image_processor(*cls.image_processors)
        measured, network = checkpoint.measured_range(), checkpoint.network()
        model = cls(checkpoint.settings.path, network, tokenizer, processor, trained=checkpoint.trained)
        model.position_range = measured or model.position_range
        return model

    def tokenize(self, text: str) -> list[int]:
        """Tokens of a piece of the prompt, without special tokens added."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def use_prompt(self, before: str, between: str, after: str, *end_tokens: str) -> None:
        """Set the prompt: text before the frames, between frames and question, and after the question.

        :param end_tokens: tokens that end a turn, in addition to those of config and tokenizer.
        """
        opening = list(self.tokenizer("")["input_ids"])[:1]  # the beginning-of-sequence token, where there is one
        prefix = self.tokenize(before)
        self.prefix_ids = tuple(prefix if prefix[:1] == opening else [*opening, *prefix])
        self._between, self._after = self.tokenize(between), self.tokenize(after)
        vocabulary = self.tokenizer.get_vocab()
        ends = {vocabulary[name] for name in end_tokens if name in vocabulary}
        for source in (getattr(self.network, "generation_config", None), self.language_model.config, self.tokenizer):
            eos = getattr(source, "eos_token_id", None)
            ends.update(eos if isinstance(eos, list) else [] if eos is None else [eos])
        self.eos_ids = frozenset(ends)

    def plain_text(self, question: str) -> str:
        """The question with spellings of special tokens broken up, so that they are read as plain text."""
        for token in self.tokenizer.get_added_vocab():
            question = question.replace(token, f"{token[0]} {token[1:]}")
        return question

    def suffix_ids(self, question: str) -> list[int]:
        """Tokens after the frames; special-token spellings inside the question are read as plain text."""
        return [*self._between, *self.tokenize(self.plain_text(question)), *self._after]

    @torch.inference_mode()
    def embed(self, ids: Sequence[int]) -> Tensor:
        """Token embeddings, [tokens, hidden]; negative ids select from ``learned``."""
        wanted = torch.tensor(list(ids), device=self.device, dtype=torch.long)
        embeddings: Tensor = self.network.get_input_embeddings()(wanted.clamp_min(0))
        for index, vector in enumerate(self.learned):
            embeddings[wanted == -1 - index] = vector.to(embeddings)
        return embeddings

    def weights_checksum(self) -> int:
        """Checksum of samples of every tensor of the network, as float32; scales of quantized ones included."""
        check = 0
        for _, tensor in sorted(self.network.state_dict().items()):
            if isinstance(tensor, Tensor):
                check = zlib.crc32(sample(tensor).float().cpu().numpy().tobytes(), check)
        return check

    def decode(self, ids: Sequence[int]) -> str:
        """Answer tokens to text."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True)).strip()

    def language_inputs(self, embeddings: Tensor) -> dict[str, Any]:
        """The language model's arguments for [tokens, width] embeddings."""
        return {"inputs_embeds": embeddings[None]}

    def position_ids(self, positions: Tensor) -> Tensor:
        """Convert (p, h, w), int [tokens, 3], to the language model's position ids; here 1-D, int64 [1, tokens]."""
        return positions[None, :, 0].to(self.device).long()

    @torch.inference_mode()
    def forward(
        self,
        arena: Arena,
        embeddings: Tensor,
        positions: Tensor,
        *,
        logits: bool,
        visible: list[Tensor] | None = None,
    ) -> Tensor | None:
        """Run announced tokens through the language model with explicit positions; raises NonFiniteError."""
        hidden = self.language_model(
            **self.language_inputs(embeddings),
            position_ids=self.position_ids(positions),
            use_cache=True,
            visible=visible,
            **{self._cache_name: arena_cache(arena)},
        ).last_hidden_state
        last = self.network.lm_head(hidden[0, -1]).float() if logits else None
        for values in (hidden,) if last is None else (hidden, last):
            self.require_finite(values, "language model")
        return last

    def capture_queries(self, layers: Sequence[int]) -> AbstractContextManager[dict[int, Tensor]]:
        """Collect unrotated queries of the forwards inside the context, layer -> float32 [heads, tokens, head_dim]."""
        return self._capture("q", layers, torch.float32)

    @contextmanager
    def capture_keys_values(self, layers: Sequence[int]) -> Iterator[tuple[dict[int, Tensor], dict[int, Tensor]]]:
        """Collect unrotated keys, and values, of the forwards inside the context in these layers."""
        with self._capture("k", layers, None) as keys, self._capture("v", layers, None) as values:
            yield keys, values

    @contextmanager
    def _capture(self, kind: str, layers: Sequence[int], dtype: torch.dtype | None) -> Iterator[dict[int, Tensor]]:
        """Collect a projection's output before rotation, layer -> [heads, tokens, head_dim]; None: native dtype."""
        captured: dict[int, Tensor] = {}
        with ExitStack() as hooks:
            for index in layers:
                attention = self.language_model.layers[index].self_attn
                last = getattr(attention, f"{kind}_norm", None) or getattr(attention, f"{kind}_proj")

                def keep(_module: nn.Module, _inputs: Any, output: Tensor, index: int = index) -> None:
                    states = output[0].to(dtype or output.dtype).view(output.shape[1], -1, self.shape.head_dim)
                    states = states.transpose(0, 1)
                    captured[index] = torch.cat([captured[index], states], dim=1) if index in captured else states

                hooks.callback(last.register_forward_hook(keep).remove)
            yield captured
