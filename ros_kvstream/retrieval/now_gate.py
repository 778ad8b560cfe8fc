"""The gate for "now": the newest frames are always in the context, retrieved ones only within the room left.

Retrieval can hurt questions about the present (other work lost 8 - 9 points): memories crowd out what is in view.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ros_kvstream.retrieval.fusion import RankedFrame


def within_room(
    ranked: Sequence[RankedFrame], patches: Sequence[int], room: int, present: Collection[int]
) -> list[RankedFrame]:
    """Retrieved frames that are added to the context, oldest first.

    :param ranked: chosen frames, best first; :param patches: tokens of each; :param room: tokens planned for them;
    :param present: frame ids that the context holds anyway (the newest): they are not brought back twice.
    """
    added: list[RankedFrame] = []
    for frame, tokens in zip(ranked, patches, strict=True):
        if frame.frame_id not in present and tokens <= room:
            added.append(frame)
            room -= tokens
    return sorted(added, key=lambda frame: (frame.stamp, frame.frame_id))
