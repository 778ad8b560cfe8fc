# SPDX-License-Identifier: Apache-2.0
"""The worker with a real memory: questions before frames, faults survived, nothing left behind."""

from __future__ import annotations

import gc
import math
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.archives import frame_pose
from support.running_node import image, picture

from ros_kvstream.errors import BudgetError, KvStreamError, NonFiniteError, QuestionCancelled, QuestionError
from ros_kvstream.memory.policies import policy_type
from ros_kvstream.node.frame_counters import FrameCounters
from ros_kvstream.node.frame_queue import FrameQueue, QueuedFrame
from ros_kvstream.node.images import image_to_rgb
from ros_kvstream.node.questions import PendingQuestion, Question
from ros_kvstream.node.worker import Worker, WorkerEvents
from ros_kvstream.poses import FramePose, Pose
from ros_kvstream.settings import MemorySettings, StreamSettings
from ros_kvstream.stream.memory import VideoMemory

LONG = 30.0
"""Seconds after which a step that should be done is taken as stuck."""


class Recorded:
    """What the worker told."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.changed = threading.Condition()

    def note(self, text: str) -> None:
        with self.changed:
            self.events.append(text)
            self.changed.notify_all()

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.events) >= count, LONG), self.events

    def wait_for_event(self, event: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: event in self.events, LONG), self.events


class Setup:
    """A worker on a random model."""

    def __init__(self, budget_mib: float = 4.0, poses: Any = None) -> None:
        from support.tiny_models import qwen2_5_vl

        self.told = Recorded()
        self.counters = FrameCounters()
        self.frames = FrameQueue(64, self.counters)
        self.model = qwen2_5_vl()
        events = WorkerEvents(
            observed=lambda frame, *_: self.told.note(f"frame {frame.stamp:g}"),
            frame_refused=lambda frame, error: self.told.note(f"refused {error}"),
            fault=lambda what, error: self.told.note(f"fault {what}: {error}"),
            image_loss=lambda frame, text: self.told.note(f"loss {text}"),
            token=lambda pending, _, index: self.told.note(f"token {pending.question.text}"))
        self.worker = Worker(self.frames, self.counters, lambda frame: image_to_rgb(frame.message), events, poses)
        settings = StreamSettings(memory=MemorySettings(budget_mib=budget_mib, policy="sliding_window"))
        self.made = self.worker.start(lambda: VideoMemory(settings, self.model))

    def put(self, *stamps: float, encoding: str = "rgb8") -> None:
        for stamp in stamps:
            self.counters.received("camera")
            self.frames.put(QueuedFrame("camera", image(picture(int(stamp)), stamp, encoding), stamp, 0.0))
        self.worker.notify()

    def ask(self, text: str, **limits: Any) -> PendingQuestion:
        pending = PendingQuestion(Question(text, **limits))
        self.worker.ask(pending, limit=10)
        return pending

    def held(self) -> tuple[threading.Event, Future[None]]:
        """Keep the worker busy until the event is set."""
        entered, release = threading.Event(), threading.Event()

        def hold(_: Any) -> None:
            entered.set()
            release.wait(LONG)

        done = self.worker.call(hold)
        assert entered.wait(LONG)
        return release, done

    def slot_contents(self) -> list[np.ndarray]:
        """Copies of everything in the arena's slots."""
        from support.arenas import contents

        return [tensor.numpy() for tensor in self.worker.call(lambda memory: contents(memory.arena)).result(LONG)]


@pytest.fixture
def setup() -> Iterator[Setup]:
    made = Setup()
    made.made.result(LONG)
    made.worker.ingest(True)
    yield made
    assert made.worker.stop(LONG) and not made.worker.died, "it was told to end"


def test_a_question_goes_ahead_of_waiting_frames(setup: Setup) -> None:
    setup.put(1)
    setup.told.wait_for(1)
    release, _ = setup.held()
    setup.put(2, 3, 4)
    pending = setup.ask("what ?", max_new_tokens=1)
    pending.answer.add_done_callback(lambda _: setup.told.note("answered"))
    release.set()
    setup.told.wait_for_event("frame 4")
    events = [event for event in setup.told.events if not event.startswith("token")]
    assert events == ["frame 1", "answered", "frame 2", "frame 3", "frame 4"]


def out_of_memory(*_: Any, **__: Any) -> None:
    raise MemoryError("no memory left")


@pytest.mark.parametrize("step", ["encode_frames", "forward"])
def test_an_error_in_the_model_drops_the_frame_counts_it_and_the_next_one_is_taken(setup: Setup, step: str) -> None:
    setup.put(1)
    setup.told.wait_for(1)
    before = setup.slot_contents()
    setattr(setup.model, step, out_of_memory)
    setup.put(2)
    setup.told.wait_for(2)
    delattr(setup.model, step)
    assert all(np.array_equal(old, new) for old, new in zip(before, setup.slot_contents(), strict=True))
    setup.put(3)
    setup.told.wait_for(3)
    assert setup.told.events == ["frame 1", "fault frame: no memory left", "frame 3"]
    count = setup.counters.camera("camera")
    assert (count.published, count.seen, count.dropped["fault"]) == (3, 2, 1)


def test_values_that_are_not_finite_are_a_fault_of_the_frame_and_of_the_question(setup: Setup) -> None:
    setup.put(1)
    setup.told.wait_for(1)
    encode, embed = setup.model.encode_frames, setup.model.embed
    setup.model.encode_frames = lambda frames: [
        replace(tokens, embeddings=tokens.embeddings * math.nan) for tokens in encode(frames)]
    setup.put(2)
    setup.told.wait_for(2)
    del setup.model.encode_frames
    setup.model.embed = lambda ids: embed(ids) * math.nan
    with pytest.raises(NonFiniteError, match="dtype = float32"):
        setup.ask("what ?", max_new_tokens=2).answer.result(LONG)
    del setup.model.embed
    assert setup.ask("what ?", max_new_tokens=2).answer.result(LONG).finish_reason
    events = [event.split(" of ")[0] for event in setup.told.events if not event.startswith("token")]
    assert events[:3] == ["frame 1", "fault frame: the vision tower", "fault question: the language model"]
    count = setup.counters.camera("camera")
    assert (count.published, count.seen, count.dropped["fault"]) == (2, 1, 1)


def test_an_error_in_a_compaction_leaves_the_memory_as_it_was_and_the_next_one_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = Setup(budget_mib=0.4)
    setup.made.result(LONG)
    setup.worker.ingest(True)
    slots = setup.worker.call(lambda memory: memory.arena.plan.frame_slots).result(LONG)
    rows, columns = setup.model.grid(56, 56)
    for stamp in range(slots // (rows * columns)):
        setup.put(stamp)
        setup.told.wait_for_event(f"frame {stamp}")
    before = setup.slot_contents()
    monkeypatch.setattr(policy_type("sliding_window"), "select", out_of_memory)
    setup.put(1000)
    setup.told.wait_for_event("fault frame: no memory left")
    assert all(np.array_equal(old, new) for old, new in zip(before, setup.slot_contents(), strict=True))
    monkeypatch.undo()
    setup.put(1001)
    setup.told.wait_for_event("frame 1001")
    assert setup.worker.call(lambda memory: memory.stats().compactions).result(LONG) == 1
    assert setup.worker.stop(LONG)


def test_an_error_while_answering_fails_the_question_and_leaves_the_memory_as_it_was(setup: Setup) -> None:
    setup.put(1, 2)
    setup.told.wait_for(2)
    before, decode = setup.slot_contents(), setup.model.decode
    setup.model.decode = lambda *_: (_ for _ in ()).throw(RuntimeError("broken"))
    failed = setup.ask("what ?", max_new_tokens=5)
    with pytest.raises(RuntimeError, match="broken"):
        failed.answer.result(LONG)
    setup.model.decode = decode
    assert all(np.array_equal(old, new) for old, new in zip(before, setup.slot_contents(), strict=True))
    assert setup.ask("what ?", max_new_tokens=5).answer.result(LONG).question == "what ?"


class Poses:
    """Places each frame at the second look for its pose; notes what it is asked."""

    def __init__(self) -> None:
        self.frames: list[int] = []
        self.looks = 0
        self.broken = False

    @property
    def waiting(self) -> int:
        return len(self.frames)

    def add(self, _: QueuedFrame, frame_id: int) -> None:
        self.frames.append(frame_id)
        self.looks = 0

    def resolve(self, memory: VideoMemory) -> None:
        if self.broken:
            raise OSError("no poses")
        self.looks += bool(self.frames)
        while self.looks > 1 and self.frames:
            pose = Pose((1.0, 2.0, 0.0))
            memory.place(self.frames.pop(), 1.0, FramePose("map#a", pose, pose))


@pytest.fixture
def placing() -> Iterator[tuple[Setup, Poses]]:
    poses = Poses()
    made = Setup(poses=poses)
    made.made.result(LONG)
    made.worker.ingest(True)
    yield made, poses
    assert made.worker.stop(LONG)


def test_frames_that_wait_for_a_pose_are_looked_at_again_without_any_other_work(placing: tuple[Setup, Poses]) -> None:
    setup, poses = placing
    setup.put(1)
    end = time.monotonic() + LONG
    while poses.looks < 2:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert not poses.frames


def test_a_question_and_a_call_see_the_poses_that_have_arrived(placing: tuple[Setup, Poses]) -> None:
    setup, _ = placing
    setup.put(1)
    setup.told.wait_for(1)
    setup.worker.call(lambda _: None).result(LONG)
    assert setup.worker.call(lambda memory: memory.frame_index[0].pose).result(LONG) is not None
    goal = setup.ask("what ?", max_new_tokens=1).answer.result(LONG).goal
    assert goal is not None and goal.base.position == (1.0, 2.0, 0.0)


def test_an_error_in_the_source_of_poses_is_a_fault_and_frames_and_questions_go_on(
    placing: tuple[Setup, Poses]
) -> None:
    setup, poses = placing
    poses.broken = True
    setup.put(1, 2)
    setup.told.wait_for_event("frame 2")
    assert "fault pose: no poses" in setup.told.events
    assert setup.ask("what ?", max_new_tokens=1).answer.result(LONG).question == "what ?"


def test_a_bad_encoding_is_told_and_counted(setup: Setup) -> None:
    setup.put(1, encoding="rgb9")
    setup.put(2)
    setup.told.wait_for(2)
    assert "rgb9" in setup.told.events[0] and setup.told.events[1] == "frame 2"
    assert setup.counters.camera("camera").dropped["encoding"] == 1


def test_a_frame_that_the_memory_cannot_hold_is_told_and_counted(setup: Setup) -> None:
    setup.counters.received("camera")
    setup.frames.put(QueuedFrame("camera", image(picture(1), 1.0), float("nan"), 0.0))
    setup.worker.notify()
    setup.told.wait_for(1)
    assert "stamp nan" in setup.told.events[0] and setup.counters.camera("camera").dropped["rejected"] == 1


def test_a_question_that_ran_out_of_time_while_waiting_is_not_answered(setup: Setup) -> None:
    setup.put(1)
    setup.told.wait_for(1)
    release, _ = setup.held()
    pending = setup.ask("what ?", timeout=1e-6)
    release.set()
    with pytest.raises(QuestionCancelled, match="no answer within"):
        pending.answer.result(LONG)


def test_a_question_near_a_place_is_answered_from_the_frames_there(setup: Setup) -> None:
    setup.put(1, 2, 3)
    setup.told.wait_for(3)
    setup.worker.call(lambda memory: [
        memory.place(frame, frame + 1.0, frame_pose(10.0 * frame)) for frame in range(3)]).result(LONG)
    answer = setup.ask("what ?", near=(10.0, 0.0, 0.0), radius=1.0, near_frame="map", max_new_tokens=1).answer
    assert [frame.stamp for frame in answer.result(LONG).evidence] == [2.0]
    assert answer.result(LONG).goal == frame_pose(10.0)
    wrong = setup.ask("what ?", near=(10.0, 0.0, 0.0), radius=1.0, near_frame="base_link").answer
    with pytest.raises(QuestionError, match="near is in frame 'base_link': give it in 'map'"):
        wrong.result(LONG)


def test_giving_up_ends_waiting_questions_at_once(setup: Setup) -> None:
    release, _ = setup.held()
    pending = setup.ask("what ?")
    setup.worker.cancel_questions("the node was deactivated")
    with pytest.raises(QuestionCancelled, match="deactivated"):
        pending.answer.result(0)
    release.set()


def test_frames_lie_while_nothing_is_to_be_taken(setup: Setup) -> None:
    setup.worker.ingest(False)
    setup.put(1)
    setup.worker.call(lambda memory: None).result(LONG)
    assert len(setup.frames) == 1 and setup.told.events == []
    setup.worker.ingest(True)
    setup.told.wait_for(1)


def test_a_question_that_the_memory_refuses_is_no_fault(setup: Setup) -> None:
    with pytest.raises(QuestionError, match="empty"):
        setup.ask(" ").answer.result(LONG)
    assert setup.told.events == []


def test_calls_after_the_end_are_refused() -> None:
    setup = Setup()
    setup.made.result(LONG)
    assert setup.worker.stop(LONG)
    with pytest.raises(KvStreamError, match="closed"):
        setup.worker.call(lambda memory: None).result(LONG)


def test_a_memory_that_cannot_be_made_is_reported_the_thread_ends_and_the_collector_runs_again() -> None:
    def make() -> VideoMemory:
        assert not gc.isenabled()
        raise BudgetError("too small")

    counters = FrameCounters()
    worker = Worker(FrameQueue(1, counters), counters, lambda _: picture(1), WorkerEvents(*[lambda *_: None] * 5))
    with pytest.raises(BudgetError, match="too small"):
        worker.start(make).result(LONG)
    assert worker.stop(LONG) and gc.isenabled()


def test_a_loaded_model_is_out_of_the_collectors_way_until_the_worker_ends() -> None:
    before = gc.get_freeze_count()
    setup = Setup()
    memory = setup.made.result(LONG)
    assert gc.isenabled() and gc.get_freeze_count() > before + 10_000
    network = weakref.ref(setup.model.network)
    cycle: list[Any] = [memory, setup.model]
    cycle.append(cycle)
    del memory, cycle
    setup.model = None  # type: ignore[assignment]
    setup.made = None  # type: ignore[assignment]
    assert setup.worker.stop(LONG)
    assert gc.get_freeze_count() == 0
    assert network() is None, "a model in a cycle is given back when the worker ends"


def test_a_worker_that_ends_by_itself_has_died() -> None:
    setup = Setup()
    setup.made.result(LONG)
    assert not setup.worker.died
    setup.model.encode_frames = lambda *_: sys.exit()  # ends the thread: not an Exception
    setup.worker.ingest(True)
    setup.put(1)
    end = time.monotonic() + LONG
    while not setup.worker.died:
        assert time.monotonic() < end
        time.sleep(0.01)
