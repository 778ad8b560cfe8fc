from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.slots import Frame, make_slots

from ros_kvstream.memory.policies.ranking import keep_top, top_mask


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=24), st.data())
def test_equal_scores_go_to_the_newer_slot_wherever_it_lies(scores: list[int], data: st.DataObject) -> None:
    keep = data.draw(st.integers(1, len(scores)))
    seed = data.draw(st.integers(0, 999))
    view = make_slots([Frame(1, 1)] * len(scores), heads=1, shuffled=True, seed=seed)
    frames = view.frames[0].tolist()
    by_frame = torch.tensor([[float(scores[frame]) for frame in frames]])
    kept = {frames[slot] for slot in keep_top(by_frame, keep, view)[0].tolist()}
    best = sorted(range(len(scores)), key=lambda frame: (scores[frame], frame), reverse=True)
    assert kept == set(best[:keep])


def test_what_is_not_a_number_ranks_below_everything() -> None:
    scores = torch.tensor([[torch.nan, -torch.inf, 1.0, torch.nan, 2.0], [torch.nan] * 5])
    mask = top_mask(scores, 3)
    assert mask[0, 2] and mask[0, 4]
    assert mask.sum(-1).tolist() == [3, 3]


def test_infinite_scores_are_kept_first() -> None:
    scores = torch.tensor([[torch.inf, 1e38, 3.0, torch.inf]])
    assert keep_top(scores, 2).tolist() == [[0, 3]]
