# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.archives import SHAPE, assert_same, frame_pose, make_archive, make_frame

from ros_kvstream.errors import ArchiveError, BudgetError, FrameError
from ros_kvstream.memory.archive.plan import MIB, plan_archive
from ros_kvstream.records import Scope
from ros_kvstream.settings import ArchiveSettings


def live_ids(archive) -> list[int]:
    table = archive.table.frames
    return sorted(table["frame_id"][table["live"]].tolist())


def test_a_frame_comes_back_as_it_went_in():
    archive = make_archive(keep_ratio=1.0)
    given_frames = [make_frame(i, camera="front" if i % 2 else "rear") for i in range(5)]
    for frame in given_frames:
        assert archive.add(frame)
    for frame in given_frames:
        slot = archive.table.slot_of(frame.frame_id)
        found = archive.fetch([slot])[0]
        assert found.coordinates.shape == (6, 2)
        assert_same(found, frame)


@pytest.mark.parametrize("place", ["memory", "folder"])
def test_live_arrays_and_file_take_exactly_the_planned_bytes_within_the_cap(place, tmp_path):
    where = "memory" if place == "memory" else str(tmp_path)
    archive = make_archive(budget_mib=0.2, path=where, thumbnail_bytes=64)
    plan = archive.plan
    working = plan.memory_parts["working memory"]
    assert archive.allocated_bytes == sum(plan.memory_parts.values()) - working
    on_disk = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert on_disk == sum(plan.disk_parts.values())
    assert archive.allocated_bytes + on_disk + working <= 0.2 * MIB
    assert plan_archive(SHAPE, plan.settings).frames == plan.frames
    archive.close()


def test_nothing_grows_over_a_stream_many_times_the_capacity():
    archive = make_archive(budget_mib=0.05)
    before = archive.allocated_bytes
    for i in range(20 * archive.plan.frames):
        assert archive.add(make_frame(i))
        assert archive.table.count <= archive.plan.frames
        assert archive.table.rows_used <= archive.plan.rows
    assert archive.allocated_bytes == before
    assert archive.status().evicted > 0


def test_when_full_all_of_the_time_stays_covered_and_older_stretches_are_sparser():
    archive = make_archive(budget_mib=0.1, novelty_weight=0.0, age_weight=1.0)
    frames = 30 * archive.plan.frames
    for i in range(frames):
        archive.add(make_frame(i, like=0))
    kept = np.array(live_ids(archive))
    assert kept[0] == 0 and kept[-1] == frames - 1
    tenths = np.histogram(kept, bins=10, range=(0, frames))[0]
    assert (tenths > 0).all(), tenths
    assert tenths[-1] > 2 * tenths[0]
    assert np.diff(kept).max() < frames / 5


def test_with_no_age_weight_all_times_are_covered_alike():
    archive = make_archive(budget_mib=0.1, novelty_weight=0.0, age_weight=0.0)
    frames = 16 * archive.plan.frames
    for i in range(frames):
        archive.add(make_frame(i, like=0))
    tenths = np.histogram(live_ids(archive), bins=10, range=(0, frames))[0]
    assert tenths.min() > 0.4 * tenths.max(), tenths


def test_telling_frames_outlive_dull_ones():
    archive = make_archive(budget_mib=0.05)
    frames = 20 * archive.plan.frames
    distinctive = set(range(37, frames, 97))
    for i in range(frames):
        archive.add(make_frame(i, like=i if i in distinctive else 0))
    kept = distinctive & set(live_ids(archive))
    assert len(kept) > 0.8 * len(distinctive)


def test_every_cameras_first_and_newest_frame_stay():
    archive = make_archive(budget_mib=0.05)
    frames = 10 * archive.plan.frames
    for i in range(frames):
        archive.add(make_frame(i, like=0, camera="rear" if i % 7 == 3 else "front"))
    kept = set(live_ids(archive))
    newest_rear = max(i for i in range(frames) if i % 7 == 3)
    assert {0, 3, frames - 1, newest_rear} <= kept


def test_kept_share_of_the_stream_is_near_the_ratio_and_dull_frames_keep_one_patch():
    archive = make_archive(budget_mib=2.0, keep_ratio=0.3, guard=0)
    for i in range(200):
        archive.add(make_frame(i))
    patches = archive.table.frames["patches"][archive.table.frames["live"]]
    assert patches.min() >= 1
    assert abs(patches.mean() / SHAPE.patches - 0.3) < 0.06
    dull = make_archive(budget_mib=2.0, keep_ratio=0.3)
    for i in range(50):
        dull.add(make_frame(i, like=0))
    table = dull.table.frames
    assert table["patches"][table["live"] & (table["frame_id"] > 0)].tolist() == [1] * 49


def test_a_late_embedding_and_time_span_are_kept():
    archive = make_archive()
    archive.add(make_frame(7))
    assert archive.complete(7, embedding=np.array([1, 2, 3, 4], np.float32), stamp_end=9.5)
    assert not archive.complete(8, stamp_end=1.0)
    slot = archive.table.slot_of(7)
    assert archive.table.embeddings[slot].tolist() == [1, 2, 3, 4]
    assert archive.fetch([slot])[0].stamp_end == 9.5


def test_a_scope_takes_frames_whose_span_meets_the_times_and_the_camera():
    archive = make_archive()
    for number, (stamp, stamp_end) in enumerate([(1, 5), (10, 10), (20, 29), (30, 30)]):
        archive.add(make_frame(number, stamp=stamp, stamp_end=stamp_end, camera="rear" if number % 2 else "front"))

    def found(**limits) -> list[int]:
        return sorted(archive.table.frames["frame_id"][archive.table.matching(Scope(**limits))].tolist())

    assert found() == [0, 1, 2, 3]
    assert found(camera="rear") == [1, 3]
    assert found(since=25.0) == [2, 3]
    assert found(until=10.0) == [0, 1]
    assert found(camera="unknown") == []
    archive.remove([3])
    assert found(camera="rear", since=25.0) == []


def test_a_late_pose_is_kept_and_only_its_own_map_matches_a_place():
    archive = make_archive()
    for number in range(4):
        archive.add(make_frame(number, pose=frame_pose(number), base_end=frame_pose(number + 5.0).base))
    archive.complete(2, pose=frame_pose(50.0, "map#b"), base_end=frame_pose(60.0).base)

    def found(x: float, segment: str) -> list[int]:
        scope = Scope(near=(x, 0.0, 0.0), radius=1.5, map=segment)
        return sorted(archive.table.frames["frame_id"][archive.table.matching(scope)].tolist())

    assert found(0.0, "map#a") == [0, 1] and found(7.0, "map#a") == [1, 3]
    assert found(50.0, "map#b") == found(60.0, "map#b") == [2] and found(50.0, "map#a") == []
    assert found(0.0, "map#c") == []
    (fetched,) = archive.fetch([archive.table.slot_of(2)])
    assert fetched.pose == frame_pose(50.0, "map#b") and fetched.base_end == frame_pose(60.0).base


def test_map_segments_without_frames_make_room_for_new_ones():
    archive = make_archive()
    for number in range(3 * archive.plan.frames):
        archive.add(make_frame(number, pose=frame_pose(number, f"map#{number}")))
    assert len(archive.table.map_names) <= archive.plan.frames
    slots = np.flatnonzero(archive.table.frames["live"])
    assert all(archive.table.map_name(slot) == f"map#{archive.table.frames['frame_id'][slot]}" for slot in slots)


def test_a_frame_of_an_overlong_map_name_has_no_pose():
    archive = make_archive()
    archive.add(make_frame(0, pose=frame_pose(1.0, "m" * 200)))
    assert archive.fetch([archive.table.slot_of(0)])[0].pose is None


def test_thumbnails_are_kept_up_to_their_room():
    archive = make_archive(thumbnail_bytes=16)
    archive.add(make_frame(1, thumbnail=b"small"))
    archive.add(make_frame(2, thumbnail=b"x" * 17))
    assert archive.thumbnail(1) == b"small"
    assert archive.thumbnail(2) == b"" and archive.thumbnail(3) == b""


def test_frames_of_a_wrong_shape_are_refused_and_change_nothing():
    archive = make_archive()
    frame = make_frame(1)
    with pytest.raises(FrameError, match="frame 1"):
        archive.add(type(frame)(1, 0.0, "front", (2, 4), frame.keys, frame.content))
    with pytest.raises(FrameError, match="frame 1: content"):
        archive.add(type(frame)(1, 0.0, "front", (2, 3), frame.keys, frame.content[:, 1:]))
    keys, content = torch.zeros(2, SHAPE.kv_heads, 20, SHAPE.head_dim), torch.zeros(20, SHAPE.vectors, SHAPE.width)
    with pytest.raises(FrameError, match="planned for 6"):
        archive.add(type(frame)(1, 0.0, "front", (4, 5), keys, content))
    assert archive.table.count == 0


def test_a_budget_too_small_names_the_smallest_that_works():
    with pytest.raises(BudgetError) as caught:
        plan_archive(SHAPE, ArchiveSettings(budget_mib=0.001))
    smallest = float(str(caught.value).split("at least ")[1].split(",")[0])
    assert plan_archive(SHAPE, ArchiveSettings(budget_mib=smallest)).frames >= 2


def test_clear_forgets_everything():
    archive = make_archive()
    for i in range(10):
        archive.add(make_frame(i))
    archive.clear()
    assert archive.status().frames == 0 and archive.newest_frame_id == -1
    archive.add(make_frame(11))
    assert archive.newest_frame_id == 11


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_no_patch_row_is_ever_shared_or_lost(data):
    archive = make_archive(budget_mib=0.03, keep_ratio=data.draw(st.sampled_from([0.2, 0.5, 1.0])))
    for i in range(data.draw(st.integers(1, 80))):
        archive.add(make_frame(i, stamp=float(data.draw(st.integers(0, 50))), like=data.draw(st.integers(0, 3))))
        table = archive.table
        live = np.flatnonzero(table.frames["live"])
        rows = [row for slot in live for row in table.rows[slot, : table.frames["patches"][slot]]]
        assert len(set(rows)) == len(rows) == table.rows_used
        assert len(live) == table.count


def test_a_state_is_restored_frame_for_frame_and_the_stream_continues_alike():
    saved, restored = (make_archive(budget_mib=0.05) for _ in range(2))
    for index in range(3 * saved.plan.frames):
        saved.add(make_frame(index))
    state = saved.state_dict()
    plain = json.loads(json.dumps({name: value for name, value in state.items() if name != "tensors"}))
    restored.check_state(plain)
    for name, view in restored.state_tensors(plain).items():
        view.copy_(state["tensors"][name])
    restored.load_state_dict(plain)
    for index in range(3 * saved.plan.frames, 4 * saved.plan.frames):
        for archive in (saved, restored):
            archive.add(make_frame(index))
    assert live_ids(restored) == live_ids(saved)
    for frame_id in live_ids(saved):
        one, other = (archive.fetch([archive.table.slot_of(frame_id)])[0] for archive in (saved, restored))
        assert torch.equal(one.content, other.content) and torch.equal(one.coordinates, other.coordinates)


@pytest.mark.parametrize("change", [{"precision": "int8"}, {"index_keys": 2}, {"budget_mib": 0.06}])
def test_a_state_of_other_settings_is_refused_with_what_differs(change):
    state = make_archive(budget_mib=0.05).state_dict()
    with pytest.raises(ArchiveError, match=r"other settings: .*\(now "):
        make_archive(**({"budget_mib": 0.05} | change)).check_state(state)
