"""Questions of order (first, last, before, after): likeness to the question does not find them, moments over time do.

The experts still tell which frames show something that could answer; of those, one frame per moment is taken from the
right end of the stream, or around the thing that the question names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ros_kvstream.retrieval.fusion import RankedFrame

ORDER_WORDS = {
    "first": "first", "earliest": "first", "begin": "first", "beginning": "first", "start": "first",
    "last": "last", "latest": "last", "recently": "last", "finally": "last",
    "before": "before", "earlier": "before", "previous": "before", "preceding": "before",
    "after": "after", "later": "after", "next": "after", "following": "after", "then": "after",
}  # fmt: skip
"""English words that tell which order is asked for."""


def asked_order(question: str) -> str:
    """first | last | before | after, or '' when the question asks for none."""
    for word in re.findall(r"[a-z]+", question.lower()):
        if word in ORDER_WORDS:
            return ORDER_WORDS[word]
    return ""


def diverse_moments(
    moments: Sequence[RankedFrame], order: str, count: int, anchor: RankedFrame | None = None
) -> list[RankedFrame]:
    """One frame a moment, chosen for order, best first.

    :param moments: one frame per distinct moment, best first; :param order: what ``asked_order`` said, '' for all of
        the time alike; :param anchor: the moment that the question names, for before and after.
    """
    by_time = sorted(moments, key=lambda frame: (frame.stamp, frame.frame_id))
    if order == "first":
        return by_time[:count]
    if order == "last":
        return by_time[::-1][:count]
    if order in ("before", "after") and anchor is not None:
        before = [frame for frame in by_time if frame.stamp < anchor.stamp]
        after = [frame for frame in by_time if frame.stamp > anchor.stamp]
        near = before[::-1] if order == "before" else after
        far = after if order == "before" else before[::-1]
        return [anchor, *near[: max(count - 2, 1)], *far[:1]][:count]
    if len(by_time) <= count:
        return by_time
    step = (len(by_time) - 1) / max(count - 1, 1)
    return [by_time[round(index * step)] for index in range(count)]
