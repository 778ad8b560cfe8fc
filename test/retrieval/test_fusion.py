# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ros_kvstream.memory.archive.plan import FRAME
from ros_kvstream.retrieval.context import within_capacity
from ros_kvstream.retrieval.fusion import Expert, RankedFrame, best_slots, choose_moments, fuse
from ros_kvstream.retrieval.ranking import frame_interval, named_moments, question_order


def table(stamps, cameras=None) -> np.ndarray:
    frames = np.zeros(len(stamps), dtype=FRAME)
    frames["stamp"] = frames["stamp_end"] = stamps
    frames["frame_id"] = np.arange(len(stamps))
    frames["camera"] = 0 if cameras is None else cameras
    frames["live"] = True
    return frames


def ranked(stamp: float, camera: int = 0, fused: float = 1.0) -> RankedFrame:
    return RankedFrame(int(stamp), int(stamp), stamp, camera, fused, {}, {})


def test_fusion_is_the_weighted_sum_of_reciprocal_ranks():
    frames = table([0, 1, 2])
    experts = {
        "a": Expert(1.0, np.array([3, 2, 1], np.float32)),
        "b": Expert(2.0, np.array([1, 3, -np.inf], np.float32)),
    }
    found = list(fuse(experts, np.ones(3, bool), frames, k=60, depth=10))
    assert [frame.frame_id for frame in found] == [1, 0, 2]
    by_hand = [1 / 62 + 2 / 61, 1 / 61 + 2 / 62, 1 / 63]
    np.testing.assert_allclose([frame.fused for frame in found], by_hand)
    assert found[0].ranks == {"a": 2, "b": 1} and found[0].scores == {"a": 2.0, "b": 3.0}
    assert found[2].ranks == {"a": 3}


def test_an_expert_of_weight_zero_is_ignored():
    frames = table([0, 1])
    experts = {"a": Expert(1.0, np.array([1, 2], np.float32)), "b": Expert(0.0, np.array([9, 0], np.float32))}
    assert [f.ranks for f in fuse(experts, np.ones(2, bool), frames, k=60, depth=9)] == [{"a": 1}, {"a": 2}]


def test_equal_scores_rank_the_newer_frame_first():
    frames = table([0, 1, 2, 3])
    experts = {"a": Expert(1.0, np.zeros(4, np.float32))}
    assert [f.frame_id for f in fuse(experts, np.ones(4, bool), frames, k=60, depth=9)] == [3, 2, 1, 0]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=1, max_size=40), st.integers(1, 50), st.data())
def test_the_best_slots_are_those_of_a_whole_sort(values, depth, data):
    scores = np.array(values, np.float32)
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))))
    ids = np.array(data.draw(st.permutations(range(len(values)))))
    whole = sorted(np.flatnonzero(allowed), key=lambda slot: (-scores[slot], -ids[slot]))
    assert best_slots(scores, allowed, ids, depth).tolist() == [int(slot) for slot in whole[:depth]]


def test_neighbours_are_one_moment_of_bounded_size():
    frames = [ranked(s) for s in (10.0, 11.0, 12.0, 50.0, 51.0, 90.0)]
    chosen = choose_moments(frames, 4, gap_seconds=2.5, moment_frames=2)
    assert [frame.stamp for frame in chosen] == [10.0, 11.0, 50.0, 51.0]
    other_camera = [ranked(10.0), ranked(10.5, camera=1)]
    assert len(choose_moments(other_camera, 4, gap_seconds=2.5, moment_frames=1)) == 2


def test_only_what_fits_the_capacity_is_added_in_time_order_and_nothing_twice():
    frames = [ranked(s) for s in (30.0, 10.0, 20.0, 40.0)]
    added = within_capacity(frames, [4, 8, 4, 4], capacity=9, present={40})
    assert [frame.stamp for frame in added] == [20.0, 30.0]


def test_questions_of_order_are_recognised_by_their_words():
    assert question_order("What did you see first?") == "first"
    assert question_order("what came after the cone?") == "after"
    assert question_order("what colour was the cone?") == ""


def test_a_question_of_a_named_thing_is_none_of_order_although_it_says_last_or_first():
    for text in ("Where did you last see the red cone?", "When did you first notice a person?",
                 "where did you LAST find my keys"):  # fmt: skip
        assert question_order(text) == "", text
    for text in ("What did you last see?", "which was the last thing you saw?",
                 "what was the last thing the robot saw?", "what came last, the cone or the ball?"):  # fmt: skip
        assert question_order(text) == "last", text
    assert question_order("what did you see after you last saw the cone?") == "after"


def test_the_interval_of_a_stream_is_that_of_its_dense_parts_whatever_was_evicted() -> None:
    frames = table([0, 3, 6, 9, 40, 43, 46])
    assert frame_interval(frames) == 3.0
    assert frame_interval(frames[[0, 2, 3, 5]]) == 3.0
    assert frame_interval(table([0, 1, 2, 3], cameras=[0, 1, 0, 1])) == 2.0
    assert frame_interval(frames[:1]) == 0.0


def test_the_moment_that_a_question_of_order_names_is_added_with_its_novel_neighbour():
    novel = [ranked(float(s)) for s in (30, 10, 50, 20, 40)]
    chosen, likely = novel[:2], [ranked(45.0), ranked(20.5), ranked(30.0)]
    assert [f.stamp for f in named_moments(likely, novel, chosen, "before", 1.0)] == [20.5, 10]
    assert [f.stamp for f in named_moments(likely, novel, chosen, "after", 1.0)] == [20.5, 30]
    assert [f.stamp for f in named_moments(likely[:1], novel, chosen, "before", 1.0)] == [45, 40]
    assert named_moments(likely[2:], novel, chosen, "before", 1.0) == [], "it is among the chosen ones"
