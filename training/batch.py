# SPDX-License-Identifier: Apache-2.0
"""Seeded patrol streams as tensors, with exactly the tokens and positions of a VideoMemory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from ros_kvstream.patrol.patrol import PatrolWorld
from ros_kvstream.patrol.questions import KINDS, PLURALS, Asker, Question
from ros_kvstream.patrol.scene import COLOURS, NUMBERS, PLACES, ROOMS, SHAPES, Sighting
from training.checkpoint_files import LONGEST_POSITION
from training.mix import mixed_stream
from training.settings import Stage

TOKENS_PER_SECOND = 2
SIDE = 2
"""Merged tokens a side of a frame."""
_QUESTION_ROOM = 64
IGNORE = -100
WORD_GROUPS = (SHAPES, tuple(PLURALS.values()), tuple(COLOURS), NUMBERS, ("top", "bottom"), ("left", "right"), ROOMS)
"""Words for an object's token, one of each group."""


@dataclass(frozen=True)
class Batch:
    """Streams of one length and questions about them."""

    pixels: torch.Tensor
    """uint8 [streams, frames, 56, 56, 3]."""
    prefix: torch.Tensor
    """int64 [prefix tokens]."""
    stream_positions: torch.Tensor
    """int64 [3, streams, prefix + 4 * frames]."""
    questions: torch.Tensor
    """int64 [streams, questions, longest], answers included, padded."""
    question_positions: torch.Tensor
    """int64 [streams, longest], equal on all three axes."""
    labels: torch.Tensor
    """int64 [streams, questions, longest]: the next token where it belongs to the answer, else IGNORE."""
    asked: tuple[tuple[Question, ...], ...]
    taught: torch.Tensor
    """bool [streams, frames]: frames whose gradient reaches the vision tower."""
    pointed: torch.Tensor
    """bool [streams, questions, prefix + 4 * frames]: tokens of the object that holds the answer, if any."""
    emphasis: torch.Tensor
    """float32 [streams, questions]: weight of a question in the pointing lessons."""
    named: torch.Tensor
    """bool, as ``pointed``: tokens of the object that the question names, if any."""
    nouns: torch.Tensor
    """int64 [streams, questions]: index of the question's noun; 0 without one."""
    followed: torch.Tensor
    """int64 [streams, prefix + 4 * frames]: sighting (from 1) of an object's token; 0 for all others."""
    contents: torch.Tensor
    """int64 [streams, frames * 4, groups]: one id of each of ``word_groups`` for a token's content, or IGNORE."""
    predecessors: torch.Tensor
    """int64 [streams, prefix + 4 * frames]: for an object's token the id of the shape before it, or IGNORE."""
    told: torch.Tensor
    """int64 [streams, questions, groups]: as ``contents``, of the thing that a question names, but as shape that of the
    thing before it."""
    word_groups: tuple[torch.Tensor, ...]
    """Ids of the words of WORD_GROUPS."""


class ChatLayout:
    """The fixed tokens around frames and questions, from the tokenizer's own chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Split the template at the video."""
        self.tokenizer = tokenizer
        self._words: dict[str, list[int]] = {}
        message = {"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "\x00"}]}
        text = tokenizer.apply_chat_template([message], add_generation_prompt=True, tokenize=False)
        before, after = str(text).split("<|video_pad|>")
        self.prefix = self._encode(before)
        self._opening, self._closing = after.split("\x00")

    def _encode(self, text: str) -> list[int]:
        if text not in self._words:
            if len(self._words) > 50_000:
                self._words.clear()
            self._words[text] = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return self._words[text]

    def ids(self, words: Sequence[str]) -> list[int]:
        """Ids of single words."""
        return [self._encode(word)[0] for word in words]

    def suffix(self, question: str) -> list[int]:
        """Tokens from the end of the video to the start of the answer."""
        return self._encode(self._opening + question + self._closing)

    def answer(self, answer: str) -> list[int]:
        """Tokens of the answer, the closing one included."""
        return self._encode(answer + "<|im_end|>")


def frame_times(stamps: np.ndarray) -> np.ndarray:
    """Temporal positions of frames, from 0: round((stamp - first stamp) * tokens per second)."""
    return np.array([round(float(stamp - stamps[0]) * TOKENS_PER_SECOND) for stamp in stamps], np.int64)


def positions(times: np.ndarray, prefix: int, shift: int) -> tuple[np.ndarray, int]:
    """Positions [3, prefix + 4 * frames] of prefix and frames, and the one at which a question starts."""
    head = np.tile(np.arange(prefix), (3, 1))
    t = np.repeat(prefix + shift + times, SIDE * SIDE)
    h = np.tile(prefix + np.repeat(np.arange(SIDE), SIDE), len(times))
    w = np.tile(prefix + np.tile(np.arange(SIDE), SIDE), len(times))
    start = max(int(t[-1]), prefix + SIDE - 1) + 1
    return np.concatenate([head, np.stack([t, h, w])], axis=1), start


def random_questions(
    world: PatrolWorld, count: int, weights: Mapping[str, float], unknown_share: float, random: np.random.Generator
) -> list[Question]:
    """Ask about the whole stream; the kinds come in the given proportions."""
    asker = Asker(world, len(world) - 1, random)
    shares = np.array([weights[kind] for kind in KINDS])
    asked: list[Question] = []
    while len(asked) < count:
        kind = "unknown" if random.random() < unknown_share else str(random.choice(KINDS, p=shares / shares.sum()))
        question = asker.ask(kind)
        if question is not None:
            asked.append(question)
    return asked


def _fill(row: torch.Tensor, sighting: Sighting, start: int, value: bool | int | torch.Tensor) -> None:
    """Set the tokens of a sighting; :param start: of the stream's first token in the row."""
    start += PLACES.index(sighting.place)
    row[start + 4 * sighting.first : start + 4 * sighting.last + 1 : 4] = value


def _pointed(world: PatrolWorld, asked: list[Question], prefix: int) -> torch.Tensor:
    """Tokens of the sighting that holds each answer, bool [questions, tokens]; none for "now" and for absent things."""
    tokens = torch.zeros(len(asked), prefix + SIDE * SIDE * len(world), dtype=torch.bool)
    firsts = {world.stamp(sighting.first): sighting for sighting in world.sightings}
    for row, question in zip(tokens, asked, strict=True):
        if question.kind.endswith("_now") or question.kind == "before":  # "before" is read where the noun looked
            continue
        holders = [firsts[stamp] for stamp in question.evidence if stamp in firsts]
        if question.kind == "after":
            holders = [sighting for sighting in holders if question.answer == f"the {sighting.shape}"]
        for sighting in holders:
            _fill(row, sighting, prefix, True)
    return tokens


def _named(world: PatrolWorld, asked: list[Question], prefix: int) -> torch.Tensor:
    """Tokens of the sighting that each question names, bool [questions, tokens]; none where there is none."""
    tokens = torch.zeros(len(asked), prefix + SIDE * SIDE * len(world), dtype=torch.bool)
    for row, question in zip(tokens, asked, strict=True):
        index = _named_sighting(world, question)
        if index is not None:
            _fill(row, world.sightings[index], prefix, True)
    return tokens


def _followed(world: PatrolWorld, prefix: int) -> torch.Tensor:
    """Running number of the sighting that a token shows, from 1, else 0; int64 [tokens]."""
    tokens = torch.zeros(prefix + SIDE * SIDE * len(world), dtype=torch.int64)
    for number, sighting in enumerate(world.sightings, start=1):
        _fill(tokens, sighting, prefix, number)
    return tokens


def _names(layout: ChatLayout, sighting: Sighting) -> torch.Tensor:
    """Ids of the words for a sighting, one of each group: int64 [groups]."""
    number = NUMBERS[sighting.number - 1]
    names = [sighting.shape, PLURALS[sighting.shape], sighting.colour, number, *sighting.place.split(), sighting.room]
    return torch.tensor(layout.ids(names))


def _contents(layout: ChatLayout, world: PatrolWorld) -> torch.Tensor:
    """Word ids for what every object's token shows, one of each group; int64 [4 * frames, groups]."""
    words = torch.full((SIDE * SIDE * len(world), len(WORD_GROUPS)), IGNORE)
    for sighting in world.sightings:
        _fill(words, sighting, 0, _names(layout, sighting))
    return words


def _named_sighting(world: PatrolWorld, question: Question) -> int | None:
    """Index of the sighting whose shape the question names, or None."""
    words = set(question.text.rstrip("?").split())
    for index, sighting in enumerate(world.sightings):
        if words & {sighting.shape, PLURALS[sighting.shape]}:
            return index
    return None


def _told(layout: ChatLayout, world: PatrolWorld, asked: list[Question]) -> torch.Tensor:
    """Word ids for the thing that each question names, the shape before in place of its own; see Batch."""
    words = torch.full((len(asked), len(WORD_GROUPS)), IGNORE)
    for row, question in zip(words, asked, strict=True):
        index = _named_sighting(world, question)
        if index is not None:
            row[:] = _names(layout, world.sightings[index])
            row[0] = layout.ids([world.sightings[index - 1].shape])[0] if index else IGNORE
    return words


def _predecessors(layout: ChatLayout, world: PatrolWorld) -> torch.Tensor:
    """Id of the shape before, for the tokens of every object but the first; int64 [tokens]."""
    shapes = [IGNORE, IGNORE, *layout.ids([sighting.shape for sighting in world.sightings])]
    return torch.tensor(shapes)[_followed(world, len(layout.prefix))]


def make_batch(layout: ChatLayout, worlds: list[PatrolWorld], asked: list[list[Question]], shifts: list[int]) -> Batch:
    """Lay out streams of one length and an equal number of questions about each."""
    pixels = np.stack([np.stack([world.picture(index) for index in range(len(world))]) for world in worlds])
    placed = [
        positions(frame_times(np.array([world.stamp(index) for index in range(len(world))])), len(layout.prefix), shift)
        for world, shift in zip(worlds, shifts, strict=True)
    ]
    rows = [[layout.suffix(item.text) + layout.answer(item.answer) for item in items] for items in asked]
    suffixes = [[len(layout.suffix(item.text)) for item in items] for items in asked]
    longest = max(len(row) for items in rows for row in items)
    tokens = torch.zeros(len(worlds), len(rows[0]), longest, dtype=torch.int64)
    labels = torch.full_like(tokens, IGNORE)
    for stream, items in enumerate(rows):
        for index, row in enumerate(items):
            tokens[stream, index, : len(row)] = torch.tensor(row)
            start = suffixes[stream][index]
            labels[stream, index, start - 1 : len(row) - 1] = torch.tensor(row[start:])
    starts = torch.tensor([start for _, start in placed])
    return Batch(
        torch.from_numpy(pixels), torch.tensor(layout.prefix),
        torch.from_numpy(np.stack([placed_positions for placed_positions, _ in placed], axis=1)),
        tokens, starts[:, None] + torch.arange(longest), labels, tuple(tuple(items) for items in asked),
        torch.ones(pixels.shape[:2], dtype=torch.bool),
        torch.stack([_pointed(world, items, len(layout.prefix)) for world, items in zip(worlds, asked, strict=True)]),
        torch.tensor([[4.0 if item.kind == "after" else 1.0 for item in items] for items in asked]),
        torch.stack([_named(world, items, len(layout.prefix)) for world, items in zip(worlds, asked, strict=True)]),
        torch.isin(tokens, torch.tensor(layout.ids([*SHAPES, *PLURALS.values()]))).long().argmax(dim=-1),
        torch.stack([_followed(world, len(layout.prefix)) for world in worlds]),
        torch.stack([_contents(layout, world) for world in worlds]),
        torch.stack([_predecessors(layout, world) for world in worlds]),
        torch.stack([_told(layout, world, items) for world, items in zip(worlds, asked, strict=True)]),
        tuple(torch.tensor(layout.ids(list(words))) for words in WORD_GROUPS),
    )  # fmt: skip


def training_batch(
    layout: ChatLayout, stage: Stage, weights: Mapping[str, float], unknown_share: float, key: tuple[int, ...]
) -> Batch:
    """The batch that belongs to a key (seed, step): the same key gives the same streams."""
    random = np.random.default_rng([20253, *key])
    seconds = (LONGEST_POSITION - _QUESTION_ROOM) / TOKENS_PER_SECOND
    worlds = [mixed_stream(stage.frames, stage.objects, seconds, random, slowest=0.1) for _ in range(stage.streams)]
    asked = [random_questions(world, stage.questions, weights, unknown_share, random) for world in worlds]
    shifts = []
    for world in worlds:
        room = LONGEST_POSITION - _QUESTION_ROOM - round(world.stamp(len(world) - 1) * TOKENS_PER_SECOND)
        far = int(np.exp(random.uniform(0, np.log(max(2, room)))))
        shifted = random.random() < (0.6 if stage.frames >= 8 else 0.1)
        shifts.append(min(far, room) if shifted else 0)
    batch = make_batch(layout, worlds, asked, shifts)
    if stage.frames < 16:
        return batch
    taught = torch.from_numpy(random.random((len(worlds), stage.frames)) < 0.2)
    taught[:, -1] = True
    for stream, world in enumerate(worlds):
        for sighting in world.sightings:
            taught[stream, sighting.first : sighting.last + 1] = True
    return replace(batch, taught=taught)


