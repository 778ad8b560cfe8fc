# SPDX-License-Identifier: Apache-2.0
"""Side lessons: losses that make states name what they stand for, and attention heads look at given tokens.

Without them the model kept guessing among the objects that it had seen: a question's noun, the token before the answer
and the objects did not attend to each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from transformers import Qwen2_5_VLForConditionalGeneration

from training.batch import IGNORE, Batch


@dataclass(frozen=True)
class Pointer:
    """Heads of a layer and the tokens that they are trained to attend to."""

    layer: int
    heads: slice
    reader: str
    """The token that looks: a question's "noun", or the "last" ones, from which the words of the answer are read."""
    target: str
    """What it looks at: the question's "noun", the thing "named" by it, or the thing that holds the "answer"."""


POINTERS = (
    Pointer(0, slice(0, 2), "last", "noun"),
    Pointer(1, slice(0, 2), "noun", "named"),
    Pointer(2, slice(0, 2), "last", "answer"),
    Pointer(2, slice(2, 4), "last", "noun"),
    Pointer(2, slice(0, 2), "noun", "named"),
    Pointer(3, slice(2, 4), "last", "noun"),
)
NOUN_LAYER = 1
"""Layer after which a question's noun is trained to hold everything about the object that it names."""
Groups = Sequence[tuple[int, torch.Tensor]]
FOLLOWING_HEADS = slice(2, 4)
FOLLOWING_WEIGHTS = {0: 1.0, 1: 4.0}
"""Layers where an object's tokens are trained to attend to the previous sighting, and the weight of the loss."""
NEIGHBOUR_WEIGHTS = {0: 1.0, 1: 2.0}
"""Layers after which they are trained to hold its shape, and the weight; a question's noun one layer later."""


def norm(layer: Any, hidden: torch.Tensor) -> torch.Tensor:
    """RMS norm of the last axis with the layer's weight."""
    return functional.rms_norm(hidden, (hidden.shape[-1],), layer.weight, layer.variance_epsilon)


def pointing_loss(paid: torch.Tensor, batch: Batch, pointer: Pointer) -> torch.Tensor:
    """Minus the log of the attention that a question's tokens pay where they should; others do not count.

    A reader "last" is every token from which a word of the answer is read: the one that follows "the" looks as well.

    :param paid: [streams, heads, questions * longest, stream tokens + longest].
    """
    if pointer.reader == "noun":
        return _pointing_from(paid, batch, pointer.target, batch.nouns, batch.nouns >= 0)
    rows = (batch.labels != IGNORE).long().argmax(dim=-1)
    words = (batch.labels != IGNORE).sum(dim=-1) - 1
    first = _pointing_from(paid, batch, pointer.target, rows, words > 0)
    return first + _pointing_from(paid, batch, pointer.target, rows + 1, words > 1)


def _pointing_from(
    paid: torch.Tensor, batch: Batch, target_name: str, rows: torch.Tensor, reads: torch.Tensor
) -> torch.Tensor:
    """Pointing loss of one token of each question, its row [streams, questions], where ``reads`` says that it reads."""
    _, asked, longest = batch.questions.shape
    rows = rows.clamp(max=longest - 1)
    index = (rows + longest * torch.arange(asked))[:, None, :, None].expand(-1, paid.shape[1], -1, paid.shape[-1])
    paid = paid.gather(2, index)
    if target_name == "noun":
        mass = paid[..., -longest:].gather(3, batch.nouns[:, None, :, None].expand(-1, paid.shape[1], -1, 1))[..., 0]
        counts = (batch.nouns > 0) & (batch.nouns < rows)
    else:
        target = batch.named if target_name == "named" else batch.pointed
        mass, counts = (paid[..., :-longest] * target[:, None]).sum(dim=-1), target.any(dim=-1)
    counts = (counts & reads)[:, None].expand_as(mass)
    losses = -(mass + 1e-4).log() * batch.emphasis[:, None]
    return losses[counts].sum() / max(1, int(counts.sum()))


def following_loss(query: torch.Tensor, key: torch.Tensor, followed: torch.Tensor) -> torch.Tensor:
    """Minus the log of the attention that objects pay to the sighting before theirs.

    :param query, key: rotated, [streams, heads, tokens, head dim]; :param followed: see Batch.
    """
    stream, row = (followed > 1).nonzero(as_tuple=True)
    if not len(row):
        return query.sum() * 0.0
    scores = torch.einsum("rhd,rhtd->rht", query[stream, :, row], key[stream]) * query.shape[-1] ** -0.5
    later = torch.arange(key.shape[2]) > row[:, None]
    weights = scores.masked_fill(later[:, None], float("-inf")).softmax(dim=-1)
    target = followed[stream] == (followed[stream, row] - 1)[:, None]
    return -((weights * target[:, None]).sum(dim=-1) + 1e-4).log().mean()


def naming_loss(
    model: Qwen2_5_VLForConditionalGeneration, states: torch.Tensor, names: torch.Tensor, groups: Groups
) -> torch.Tensor:
    """Cross-entropy of the words for what states stand for, read as the model's output; summed over the groups.

    :param states: [..., hidden]; :param names: int64 [..., groups], one id of every group or IGNORE.
    """
    known = (names != IGNORE).any(dim=-1)
    if not known.any():
        return states.sum() * 0.0
    logits, names = model.lm_head(norm(model.model.language_model.norm, states[known])), names[known]
    total = torch.zeros(())
    for group, words in groups:
        rows = names[:, group] != IGNORE
        if rows.any():
            labels = (words == names[rows, group, None]).long().argmax(dim=-1)
            total = total + functional.cross_entropy(logits[rows][:, words], labels)
    return total


def neighbour_loss(
    model: Qwen2_5_VLForConditionalGeneration, states: torch.Tensor, names: torch.Tensor, shapes: torch.Tensor
) -> torch.Tensor:
    """Cross-entropy of the previous object's shape in states [..., hidden]; ids ``names`` [...] or IGNORE.

    Read along fixed random directions: the directions of the words already stand for the object's own shape.
    """
    known = names != IGNORE
    if not known.any():
        return states.sum() * 0.0
    directions = torch.randn(states.shape[-1], len(shapes), generator=torch.Generator().manual_seed(20258))
    readers = 6.0 * functional.normalize(directions, dim=0)
    logits = functional.rms_norm(states[known], states.shape[-1:]) @ readers
    return functional.cross_entropy(logits, (shapes == names[known][:, None]).long().argmax(dim=-1))
