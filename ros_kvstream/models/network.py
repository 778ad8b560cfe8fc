"""A network of transformers behind our interface: all that does not depend on the family.

A family derives from NetworkModel, says which part is the language model, and adds pictures, layout and prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ros_kvstream.errors import ModelError
from ros_kvstream.memory.arena import Arena
from ros_kvstream.memory.budget import CacheShape
from ros_kvstream.memory.rotary import Rotary
from ros_kvstream.models.arena_cache import arena_cache, cache_argument
from ros_kvstream.models.attention import use_arena_attention
from ros_kvstream.models.base import VideoLanguageModel

CHANGING_ROTARY = ("dynamic", "longrope")
"""Kinds of rotary embedding whose frequencies change with the length of the sequence: keys could not be turned back."""


def rotary_of(embedding: Any, device: torch.device, axes: Tensor | None = None, *, relative: bool = False) -> Rotary:
    """A language model's rotary embedding as data.

    :param embedding: its ``rotary_emb``; :param axes: int64 [head_dim / 2], None for a 1-D family; see Rotary.
    :raises ModelError: for a kind whose frequencies change with the length of the sequence.
    """
    kind = getattr(embedding, "rope_type", "default")
    if kind in CHANGING_ROTARY:
        raise ModelError(f"rotary embeddings of type {kind!r} change with the sequence's length: not supported")
    frequencies = embedding.inv_freq.float().to(device)
    axes = torch.zeros(len(frequencies), dtype=torch.int64) if axes is None else axes
    return Rotary(frequencies, axes.to(device), float(embedding.attention_scaling), relative)


def _refuse_windows(text: Any) -> None:
    """Raise ModelError for a decoder whose layers see a window only: the memory shows every layer all that is kept."""
    window = getattr(text, "sliding_window", None)
    if window and getattr(text, "use_sliding_window", True):
        raise ModelError(f"sliding_window = {window}: layers that see a window only are not supported")


class NetworkModel(VideoLanguageModel):
    """A family on a network of transformers. Layout, prompt and pictures are the family's own."""

    def __init__(self, name: str, network: Any, language_model: Any, tokenizer: Any, *, trained: bool = True) -> None:
        """:param network: the loaded model for conditional generation; :param language_model: its decoder."""
        self.name = name
        self.trained = trained
        self.network = network.eval()
        self.language_model = language_model
        self.tokenizer = tokenizer
        self.learned: tuple[Tensor, ...] = ()
        """Vectors [hidden] that stand between tokens without being one; id -1 is the first, -2 the second."""
        text = language_model.config
        _refuse_windows(text)
        self.device = next(network.parameters()).device
        self.shape = CacheShape(
            layers=text.num_hidden_layers,
            kv_heads=text.num_key_value_heads,
            head_dim=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
            dtype=network.dtype,
        )
        self.position_limit = text.max_position_embeddings
        self.rotary = rotary_of(language_model.rotary_emb, self.device)
        self._cache_name = cache_argument(language_model)
        use_arena_attention(language_model)

    # -- text -----------------------------------------------------------------------------------------------------

    def tokenize(self, text: str) -> list[int]:
        """Tokens of a piece of the prompt, nothing added."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def use_prompt(self, before: str, between: str, after: str, *end_tokens: str) -> None:
        """Take the prompt's pieces: before the frames, between frames and question, after the question.

        :param end_tokens: tokens that end a turn, beside those that config and tokenizer name.
        """
        opening = list(self.tokenizer("")["input_ids"])[:1]  # a beginning-of-sequence token, where the model wants one
        prefix = self.tokenize(before)
        self.prefix_ids = tuple(prefix if prefix[:1] == opening else [*opening, *prefix])
        self._between, self._after = self.tokenize(between), self.tokenize(after)
        self.eos_ids = self._end_tokens(end_tokens)

    def _end_tokens(self, names: Sequence[str]) -> frozenset[int]:
        ids: set[int] = set()
        generation = getattr(self.network, "generation_config", None)
        for source in (generation, self.language_model.config, self.tokenizer):
            eos = getattr(source, "eos_token_id", None)
            ids.update(eos if isinstance(eos, list) else [] if eos is None else [eos])
        known = self.tokenizer.get_vocab()
        return frozenset(ids | {known[name] for name in names if name in known})

    def plain_text(self, question: str) -> str:
        """A question in which spellings of special tokens are plain text."""
        for token in self.tokenizer.get_added_vocab():
            question = question.replace(token, f"{token[0]} {token[1:]}")
        return question

    def suffix_ids(self, question: str) -> list[int]:
        """Tokens after the frames; special-token spellings inside the question are read as plain text."""
        return [*self._between, *self.tokenize(self.plain_text(question)), *self._after]

    @torch.inference_mode()
    def embed(self, ids: Sequence[int]) -> Tensor:
        """Token embeddings, [tokens, hidden]; negative ids are the family's ``learned`` vectors."""
        wanted = torch.tensor(list(ids), device=self.device, dtype=torch.long)
        embeddings: Tensor = self.network.get_input_embeddings()(wanted.clamp_min(0))
        for index, vector in enumerate(self.learned):
            embeddings[wanted == -1 - index] = vector.to(embeddings)
        return embeddings

    def decode(self, ids: Sequence[int]) -> str:
        """Answer tokens to text."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True)).strip()

    # -- the language model ---------------------------------------------------------------------------------------

    def language_inputs(self, embeddings: Tensor) -> dict[str, Any]:
        """The language model's arguments for [tokens, width] embeddings."""
        return {"inputs_embeds": embeddings[None]}

    def position_ids(self, positions: Tensor) -> Tensor:
        """The language model's own form of positions, from (p, h, w), int [tokens, 3]: 1-D, int64 [1, tokens]."""
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
        """Run announced tokens through the language model with explicit positions."""
        hidden = self.language_model(
            **self.language_inputs(embeddings),
            position_ids=self.position_ids(positions),
            use_cache=True,
            visible=visible,
            **{self._cache_name: arena_cache(arena)},
        ).last_hidden_state
        return self.network.lm_head(hidden[0, -1]).float() if logits else None

    @contextmanager
    def capture_queries(self, layers: Sequence[int]) -> Iterator[dict[int, Tensor]]:
        """Un-rotated queries of the forwards inside the context, layer -> float32 [heads, tokens, head_dim]."""
        with self._capture("q", layers, torch.float32) as queries:
            yield queries

    @contextmanager
    def capture_keys_values(self) -> Iterator[tuple[dict[int, Tensor], dict[int, Tensor]]]:
        """Un-rotated keys, and values, of the forwards inside the context, all layers."""
        layers = range(self.shape.layers)
        with self._capture("k", layers, None) as keys, self._capture("v", layers, None) as values:
            yield keys, values

    @contextmanager
    def _capture(self, kind: str, layers: Sequence[int], dtype: torch.dtype | None) -> Iterator[dict[int, Tensor]]:
        """Collect a projection's output before rotation, layer -> [heads, tokens, head_dim]; None: native dtype."""
        captured: dict[int, Tensor] = {}
        hooks = []
        for index in layers:
            attention = self.language_model.layers[index].self_attn
            last = getattr(attention, f"{kind}_norm", None) or getattr(attention, f"{kind}_proj")

            def keep(_module: nn.Module, _inputs: Any, output: Tensor, index: int = index) -> None:
                states = output[0].to(dtype or output.dtype).view(output.shape[1], -1, self.shape.head_dim)
                earlier = captured.get(index)
                states = states.transpose(0, 1)
                captured[index] = states if earlier is None else torch.cat([earlier, states], dim=1)

            hooks.append(last.register_forward_hook(keep))
        try:
            yield captured
        finally:
            for hook in hooks:
                hook.remove()
