# SPDX-License-Identifier: Apache-2.0
"""The newest frames of an archive in a folder when another memory is loaded."""

import torch

from ros_kvstream.memory.archive.archive import Archive
from ros_kvstream.memory.archive.plan import ArchiveShape, plan_archive
from ros_kvstream.memory.archive.records import FrameToArchive
from ros_kvstream.settings import ArchiveSettings


def test_loading_a_memory_removes_the_newest_frames_of_the_one_before(tmp_path):
    shape = ArchiveShape(vectors=1, width=8, kv_heads=1, head_dim=4, index_layers=(0,), patches=4, newest=2)
    archive = Archive(plan_archive(shape, ArchiveSettings(budget_mib=1.0, path=str(tmp_path))), "model")
    archive.add(FrameToArchive(0, 1.0, "front", (2, 2), torch.ones(1, 1, 4, 4), torch.ones(4, 1, 8)))
    assert archive.newest_frames([0])
    archive.empty_for([])
    assert not archive.newest_frames([0])
    archive.close()
