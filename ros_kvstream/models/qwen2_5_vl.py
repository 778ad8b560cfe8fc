"""Qwen2.5-VL on transformers: windowed vision tower, M-RoPE in sections, positions from stamps."""

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
from ros_kvstream.models.base import Frame, FrameTokens, VideoLanguageModel
from ros_kvstream.models.checkpoint import Checkpoint
from ros_kvstream.models.qwen2_5_vl_vision import BatchedVisionTower

QUESTION_MARKER = "kvstreamquestion"
"""Stands for the question while the chat template is split; a plain word, so that no template changes it."""


def split_chat_template(tokenizer: Any, video_token: str) -> tuple[str, str, str]:
    """The chat template's text before the frames, between frames and question, and after the question.

    :raises ModelError: when the tokenizer has no chat template or the template has no place for a video.
    """
    message = {"role": "user", "content": [{"type": "video"}, {"type": "text", "text": QUESTION_MARKER}]}
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError("the tokenizer has no chat template: take an instruction-tuned checkpoint")
    text = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
    if text.count(video_token) != 1 or text.count(QUESTION_MARKER) != 1:
        raise ModelError(f"the chat template has no single place for a video ({video_token}): {text!r}")
    before, rest = text.split(video_token)
    between, after = rest.split(QUESTION_MARKER)
    return before, between, after


def mrope_axes(sections: Sequence[int]) -> Tensor:
    """Axis (0 = t, 1 = h, 2 = w) of each pair of dimensions for M-RoPE in sections, int64 [head_dim / 2]."""
    return torch.tensor([axis % 3 for axis, size in enumerate(sections) for _ in range(size)])


class Qwen25VL(VideoLanguageModel):
    """Qwen2.5-VL (and, with its own tower, any model of the same layout)."""

    family = "qwen2_5_vl"

    def __init__(
        self, name: str, model: Any, tokenizer: Any, image_processor: Any, *, trained: bool = True
    ) -> None:
        """Wrap a loaded Qwen2_5_VLForConditionalGeneration, its tokenizer and its image processor."""
        self.name = name
        self.trained = trained
        self.network = model.eval()
        self.tokenizer = tokenizer
        self.image_processor = image_processor
        config = model.config
        text = config.text_config
        self.device = next(model.parameters()).device
        heads = text.num_attention_heads
        self.shape = CacheShape(
            layers=text.num_hidden_layers,
            kv_heads=text.num_key_value_heads,
            head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
            dtype=model.dtype,
        )
        self.tokens_per_second = float(config.vision_config.tokens_per_second)
        self.position_limit = text.max_position_embeddings
        self._merge = config.vision_config.spatial_merge_size
        self.patch_side = config.vision_config.patch_size * self._merge
        embedding = model.model.language_model.rotary_emb
        self.rotary = Rotary(
            inverse_frequencies=embedding.inv_freq.float().to(self.device),
            axes=mrope_axes(embedding.mrope_section).to(self.device),
            scaling=float(embedding.attention_scaling),
        )
        before, self._between, self._after = split_chat_template(tokenizer, "<|video_pad|>")
        self.prefix_ids = tuple(self._tokenize(before))
        self.eos_ids = self._end_tokens()
        self._cache_name = cache_argument(model.model.language_model)
        self._tower = BatchedVisionTower(model.model.visual)
        use_arena_attention(model.model.language_model)

    def _tokenize(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _end_tokens(self) -> frozenset[int]:
        ids: set[int] = set()
        generation = getattr(self.network, "generation_config", None)
        for source in (generation, self.network.config.text_config, self.tokenizer):
            eos = getattr(source, "eos_token_id", None)
            ids.update(eos if isinstance(eos, list) else [] if eos is None else [eos])
        end_of_turn = self.tokenizer.convert_tokens_to_ids("<|im_end|>")
        if isinstance(end_of_turn, int):
            ids.add(end_of_turn)
        return frozenset(ids)

    # -- pictures -------------------------------------------------------------------------------------------------

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of visual tokens: patches after the processor's own resize, merged."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        processor = self.image_processor
        size = processor.size
        patch = processor.patch_size * processor.merge_size
        rows, columns = smart_resize(
            height, width, factor=patch, min_pixels=size["shortest_edge"], max_pixels=size["longest_edge"]
        )
        return rows // patch, columns // patch

    @torch.inference_mode()
    def encode_frames(self, frames: Sequence[Frame]) -> list[FrameTokens]:
        """Run the vision tower; each frame is one temporal grid, doubled over the temporal patch."""
        inputs = self.image_processor(images=list(frames), return_tensors="pt")
        grids = [tuple(grid) for grid in inputs["image_grid_thw"][:, 1:].tolist()]
        pixels = inputs["pixel_values"].to(self.device, self.shape.dtype)
        pictures = pixels.split([height * width for height, width in grids])
        encoded: dict[int, FrameTokens] = {}
        for height, width in dict.fromkeys(grids):
            members = [index for index, grid in enumerate(grids) if grid == (height, width)]
            merged = self._tower(torch.stack([pictures[index] for index in members]), height, width)
            for index, embeddings in zip(members, merged, strict=True):
                encoded[index] = FrameTokens(embeddings, height // self._merge, width // self._merge)
        return [encoded[index] for index in range(len(pictures))]

    # -- text -----------------------------------------------------------------------------------------------------

    def suffix_ids(self, question: str) -> list[int]:
        """Tokens after the frames; special-token spellings inside the question are read as plain text."""
        for token in self.tokenizer.get_added_vocab():
            question = question.replace(token, f"{token[0]} {token[1:]}")
        question_ids = self.tokenizer(question, add_special_tokens=False)["input_ids"]
        return [*self._tokenize(self._between), *question_ids, *self._tokenize(self._after)]

    @torch.inference_mode()
    def embed(self, ids: Sequence[int]) -> Tensor:
        """Token embeddings, [tokens, hidden]."""
        return self.network.get_input_embeddings()(torch.tensor(list(ids), device=self.device))

    def decode(self, ids: Sequence[int]) -> str:
        """Answer tokens to text."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True)).strip()

    # -- the language model ---------------------------------------------------------------------------------------

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
        """Run announced tokens through the language model with explicit 3-D positions."""
        hidden = self.network.model.language_model(
            inputs_embeds=embeddings[None],
            position_ids=positions.to(self.device).long().T[:, None],
            use_cache=True,
            visible=visible,
            **{self._cache_name: arena_cache(arena)},
        ).last_hidden_state
        return self.network.lm_head(hidden[0, -1]).float() if logits else None

    @contextmanager
    def capture_queries(self, layers: Sequence[int]) -> Iterator[dict[int, Tensor]]:
        """Un-rotated queries of the forwards inside the context, layer -> [heads, tokens, head_dim]."""
        captured: dict[int, Tensor] = {}
        hooks = []
        for index in layers:
            projection = self.network.model.language_model.layers[index].self_attn.q_proj

            def keep(_module: nn.Module, _inputs: Any, output: Tensor, index: int = index) -> None:
                queries = output[0].float().view(output.shape[1], -1, self.shape.head_dim).transpose(0, 1)
                earlier = captured.get(index)
                captured[index] = queries if earlier is None else torch.cat([earlier, queries], dim=1)

            hooks.append(projection.register_forward_hook(keep))
        try:
            yield captured
        finally:
            for hook in hooks:
                hook.remove()


def open_model(checkpoint: Checkpoint) -> Qwen25VL:
    """Load a checkpoint of this family."""
    network, tokenizer = checkpoint.network(), checkpoint.tokenizer()
    processor = checkpoint.image_processor("Qwen2VLImageProcessorPil", "Qwen2VLImageProcessor")
    if checkpoint.max_frame_pixels:
        edge = max(checkpoint.max_frame_pixels, (processor.patch_size * processor.merge_size) ** 2)
        processor.size = {"shortest_edge": min(processor.size["shortest_edge"], edge), "longest_edge": edge}
    return Qwen25VL(checkpoint.name, network, tokenizer, processor, trained=checkpoint.trained)
