"""Work on a slot table that many layers share is done once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from ros_kvstream.memory.policies.base import LayerSlots

Result = TypeVar("Result")


def once_per_table(work: Callable[..., Result]) -> Callable[..., Result]:
    """Keep the last result of ``work(view, *arguments)`` for views with the same ``table`` and equal arguments.

    ``work`` may depend on the slot table (frames, cameras, positions) and the shape of the view, never on keys or
    values; nobody may change what it returns.
    """
    last: tuple[object, tuple[Any, ...], Any] = (None, (), None)

    @wraps(work)
    def remembered(view: LayerSlots, *arguments: Any) -> Result:
        nonlocal last
        table, known, result = last
        key = (view.frames.shape, *arguments)
        if view.table is None or view.table is not table or known != key:
            result = work(view, *arguments)
            if view.table is not None:
                last = (view.table, key, result)
        return result  # type: ignore[no-any-return]

    return remembered
