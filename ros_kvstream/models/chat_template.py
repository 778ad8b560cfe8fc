"""A tokenizer's chat template, taken apart into what stands before the frames, before the question and after it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ros_kvstream.errors import ModelError

QUESTION_MARKER = "kvstreamquestion"
"""Stands for the question while the chat template is split; a plain word, so that no template changes it."""


def split_chat_template(tokenizer: Any, video_token: str, kind: str = "video") -> tuple[str, str, str]:
    """The chat template's text before the frames, between frames and question, and after the question.

    :param video_token: what the template puts in the place of a video; :param kind: the content's type: video | image.
    :raises ModelError: when the tokenizer has no chat template or the template has no place for a video.
    """
    message = {"role": "user", "content": [{"type": kind}, {"type": "text", "text": QUESTION_MARKER}]}
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError("the tokenizer has no chat template: take an instruction-tuned checkpoint")
    text = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
    if text.count(video_token) != 1 or text.count(QUESTION_MARKER) != 1:
        raise ModelError(f"the chat template has no single place for a video ({video_token}): {text!r}")
    before, rest = text.split(video_token)
    between, after = rest.split(QUESTION_MARKER)
    return before, between, after


def use_processor_template(tokenizer: Any, folder: Path) -> None:
    """Give a tokenizer the chat template of its processor, where the folder has one: its own may know no pictures."""
    jinja, old = folder / "chat_template.jinja", folder / "chat_template.json"
    if jinja.is_file():
        tokenizer.chat_template = jinja.read_text(encoding="utf-8")
    elif old.is_file():
        tokenizer.chat_template = json.loads(old.read_text(encoding="utf-8"))["chat_template"]
