# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from support.archives import SHAPE, add_frames, assert_same, frame_pose, make_archive, make_frame

from ros_kvstream.errors import ArchiveError
from ros_kvstream.memory.archive import file as archive_file
from ros_kvstream.memory.archive.file import FILE_NAME, ArchiveFile

WRITERS = """
import os, signal, sys
from support.archives import make_archive, make_frame

def write(folder, fatal_write):
    signal.alarm(60)
    archive = make_archive(budget_mib=0.2, path=folder, queue_frames=64)
    calls, whole = 0, os.pwrite
    def dying(descriptor, data, offset):
        nonlocal calls
        calls += 1
        if calls == fatal_write:
            whole(descriptor, data[: len(data) // 2], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(descriptor, data, offset)
    os.pwrite = dying
    print(os.getpid(), flush=True)
    for i in range(1_000_000):
        archive.add(make_frame(i))
        archive.complete(i, stamp_end=i + 0.25)
        if i % 3 == 0:
            archive.wait()

for line in sys.stdin:
    fatal_write, folder = line.rstrip("\\n").split(" ", 1)
    writer = os.fork()
    if writer == 0:
        write(folder, int(fatal_write))
    print(os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1]), flush=True)
"""


class Writers:
    """Starts processes that write to an archive until they are killed; each is a fork of one that has torch loaded."""

    def __init__(self, process: subprocess.Popen) -> None:
        self.process = process

    def start(self, folder, fatal_write: int = -1) -> int:
        """Return the process id of a writer whose archive is open; it kills itself in the given write."""
        self.process.stdin.write(f"{fatal_write} {folder}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def wait(self) -> int:
        """Return the exit status of the writer."""
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def writers():
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, "-c", WRITERS], env=environment, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as process:  # fmt: skip
        yield Writers(process)


def check_everything_held(archive) -> int:
    """Every frame of a reopened archive is whole; returns how many there are."""
    slots = np.flatnonzero(archive.table.frames["live"])
    for slot in slots:
        found = archive.fetch([slot])[0]
        assert_same(found, make_frame(found.frame_id))
        assert found.stamp_end in (found.stamp, found.frame_id + 0.25)
    return len(slots)


@pytest.fixture
def archive_of(tmp_path):
    opened = []

    def make(**settings):
        opened.append(make_archive(path=str(tmp_path), **settings))
        return opened[-1]

    yield make
    for archive in opened:
        archive.close()


def test_a_reopened_archive_holds_what_it_held(archive_of):
    first = archive_of(thumbnail_bytes=16, queue_frames=32, budget_mib=0.2)
    for i in range(20):
        first.add(make_frame(i, camera="front" if i % 2 else "rear", thumbnail=b"%d" % i))
    first.complete(3, embedding=np.array([4, 3, 2, 1], np.float32), stamp_end=1.75)
    first.close()
    again = archive_of(thumbnail_bytes=16, queue_frames=32, budget_mib=0.2)
    assert again.status().frames == 20 and again.status().torn == 0
    assert again.newest_frame_id == 19
    for i in range(20):
        slot = again.table.slot_of(i)
        assert_same(again.fetch([slot])[0], make_frame(i, camera="front" if i % 2 else "rear"))
        assert again.thumbnail(i) == b"%d" % i
        assert first.table.index_keys[:, first.table.slot_of(i)].equal(again.table.index_keys[:, slot])
    slot = again.table.slot_of(3)
    assert again.table.embeddings[slot].tolist() == [4, 3, 2, 1]
    assert again.fetch([slot])[0].stamp_end == 1.75
    assert again.add(make_frame(20)) and again.status().frames == 21


@pytest.mark.parametrize("fatal_write", [1, 3, 41, 42, 401, 402])
def test_a_write_cut_in_half_by_a_kill_is_skipped_and_all_else_is_whole(fatal_write, tmp_path, writers):
    writers.start(tmp_path, fatal_write)
    assert writers.wait() == -signal.SIGKILL
    archive = make_archive(budget_mib=0.2, path=str(tmp_path), queue_frames=64)
    held = check_everything_held(archive)
    assert archive.status().torn <= 2
    if fatal_write > 100:
        assert held > 10
    add_frames(archive, range(2_000_000, 2_000_050))
    archive.close()
    again = make_archive(budget_mib=0.2, path=str(tmp_path), queue_frames=64)
    check_everything_held(again)
    assert again.table.slot_of(2_000_049) is not None
    again.close()


def test_kills_at_random_moments_never_leave_a_wrong_frame(tmp_path, writers):
    random.seed(5)
    for _ in range(4):
        writer = writers.start(tmp_path)
        time.sleep(random.uniform(0.02, 0.4))
        os.kill(writer, signal.SIGKILL)
        writers.wait()
        archive = make_archive(budget_mib=0.2, path=str(tmp_path), queue_frames=64)
        check_everything_held(archive)
        archive.close()


def test_poses_of_a_reopened_archive_are_the_same_bit_for_bit(archive_of):
    archive = archive_of()
    for number in range(6):
        archive.add(make_frame(number, pose=frame_pose(number / 7) if number % 2 else None))
    archive.complete(0, pose=frame_pose(0.3, "map#b"), base_end=frame_pose(1 / 3).base)
    archive.complete(3, pose=frame_pose(3 / 7), base_end=frame_pose(4 / 7).base)
    archive.close()
    again = archive_of()
    slots = [int(slot) for slot in np.flatnonzero(again.table.frames["live"])]
    found = {frame.frame_id: (frame.pose, frame.base_end) for frame in again.fetch(slots)}
    assert found[0] == (frame_pose(0.3, "map#b"), frame_pose(1 / 3).base)
    assert found[1] == (frame_pose(1 / 7), frame_pose(1 / 7).base)
    assert found[3] == (frame_pose(3 / 7), frame_pose(4 / 7).base)
    assert found[2] == found[4] == (None, None)


def test_every_torn_record_is_counted_and_its_room_is_used_again(archive_of, tmp_path):
    archive = archive_of()
    add_frames(archive, range(10))
    slot, row = archive.table.slot_of(4), int(archive.table.rows[archive.table.slot_of(7), 0])
    archive.close()
    whole = ArchiveFile(archive.plan, "")
    with open(tmp_path / FILE_NAME, "r+b") as file:
        for offset in (whole.slot_offset(slot) + 70, whole.row_offset(row) + 9):
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 1]))
    whole.close()
    again = archive_of()
    assert again.status().torn == 2
    assert again.table.slot_of(4) is None and again.table.slot_of(7) is None
    assert again.table.frames["live"].sum() == 8
    add_frames(again, range(10, 400))
    assert again.table.count == again.plan.frames or again.plan.rows - again.table.rows_used < SHAPE.patches


def test_clear_is_remembered_across_a_restart(archive_of):
    archive = archive_of()
    add_frames(archive, range(10))
    archive.clear()
    archive.add(make_frame(50))
    archive.close()
    again = archive_of()
    assert again.status().frames == 1 and again.newest_frame_id == 50


def test_a_full_disk_while_writing_is_reported_and_the_stream_goes_on(archive_of, monkeypatch):
    archive = archive_of()
    add_frames(archive, [0])
    whole, full = os.pwrite, threading.Event()
    full.set()

    def pwrite(*arguments):
        if full.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole(*arguments)

    monkeypatch.setattr(archive_file.os, "pwrite", pwrite)
    for i in range(1, 6):
        assert archive.add(make_frame(i))
    archive.wait()
    status = archive.status()
    assert status.state == "degraded" and status.lost == 5 and status.frames == 1
    assert "No space left" in status.message and "archive.budget_mib" in status.message
    full.clear()
    add_frames(archive, [9])
    assert archive.status().frames == 2


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_folder_without_room_or_permission_is_reported_and_nothing_is_left(error, tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(archive_file.os, "posix_fallocate" if error == errno.ENOSPC else "open", fail)
    archive = make_archive(path=str(tmp_path))
    assert archive.status().state == "failed"
    assert os.strerror(error) in archive.status().message and "Remedy" in archive.status().message
    assert not archive.add(make_frame(0)) and archive.status().lost == 1
    assert list(tmp_path.iterdir()) == []
    archive.close()


def test_a_place_that_is_no_folder_is_reported(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    archive = make_archive(path=str(tmp_path / "file" / "inside"))
    assert archive.status().state == "failed" and "folder" in archive.status().message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_reported(tmp_path):
    tmp_path.chmod(0o555)
    assert make_archive(path=str(tmp_path)).status().state == "failed"


def test_a_slow_disk_never_blocks_ingest_and_drops_are_counted(archive_of, monkeypatch):
    archive = archive_of(queue_frames=2, budget_mib=0.2)
    go, whole = threading.Event(), os.pwrite

    def slow(*arguments):
        go.wait()
        return whole(*arguments)

    monkeypatch.setattr(archive_file.os, "pwrite", slow)
    taken = [archive.add(make_frame(i)) for i in range(10)]
    assert taken == [True] * 4 + [False] * 6
    assert archive.status().dropped == 6
    for i in range(4):
        assert_same(archive.fetch([archive.table.slot_of(i)])[0], make_frame(i))
    go.set()
    archive.wait()
    assert archive.add(make_frame(11))
    for i in (0, 1, 2, 3, 11):
        assert_same(archive.fetch([archive.table.slot_of(i)])[0], make_frame(i))


def test_an_embedding_that_finds_the_queue_full_is_counted_and_reported(archive_of, monkeypatch):
    archive = archive_of(queue_frames=2)
    add_frames(archive, [0])
    go, whole = threading.Event(), os.pwrite
    monkeypatch.setattr(archive_file.os, "pwrite", lambda *arguments: go.wait() and whole(*arguments))
    room = 4 * archive.plan.staged_records
    for end in range(room + 8):
        assert archive.complete(0, embedding=np.ones(4, np.float32), stamp_end=float(end))
    go.set()
    archive.wait()
    status = archive.status()
    assert room <= room + 8 - status.late_dropped <= room + 1  # the writer may have taken one before the disk hung
    assert status.state == "degraded" and f"{status.late_dropped} embeddings" in status.message
    assert "archive.queue_frames" in status.message


def test_a_file_of_other_settings_another_model_or_no_archive_is_refused(archive_of, tmp_path):
    archive_of(fingerprint="model a").close()
    with pytest.raises(ArchiveError, match="fingerprint 'model a' there, 'model b' here"):
        archive_of(fingerprint="model b")
    with pytest.raises(ArchiveError, match="frames"):
        archive_of(fingerprint="model a", budget_mib=0.2)
    with pytest.raises(ArchiveError, match="content 'embeddings' there, 'kv' here"):
        archive_of(fingerprint="model a", content="kv")
    file = tmp_path / FILE_NAME
    data = bytearray(file.read_bytes())
    data[20] ^= 1
    file.write_bytes(data)
    with pytest.raises(ArchiveError, match="damaged"):
        archive_of(fingerprint="model a")
    file.write_bytes(b"holiday pictures" * 1000)
    with pytest.raises(ArchiveError, match="no archive"):
        archive_of(fingerprint="model a")
    assert file.read_bytes().startswith(b"holiday")


def test_a_file_in_use_is_refused(archive_of):
    archive_of()
    with pytest.raises(ArchiveError, match="in use"):
        archive_of()


def test_loading_a_memory_removes_the_newest_frames_of_the_one_before(archive_of):
    archive = archive_of()
    archive.add(make_frame(0))
    assert archive.newest_frames([0])
    archive.empty_for([])
    assert not archive.newest_frames([0])
