"""The lifecycle node ``kvstream``: configure loads and allocates, activate subscribes, cleanup gives all back."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import replace
from pathlib import Path
from typing import Any

from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter

from ros_kvstream.errors import FrameError, KvStreamError
from ros_kvstream.node.accounting import DropCause, FrameAccount
from ros_kvstream.node.cameras import CameraSubscription
from ros_kvstream.node.compressed_images import compressed_to_rgb
from ros_kvstream.node.frame_queue import FrameQueue, QueuedFrame
from ros_kvstream.node.heartbeat import Heartbeat
from ros_kvstream.node.images import DepthRendering, Rgb, image_to_rgb
from ros_kvstream.node.kept_tokens import KeptTokens
from ros_kvstream.node.memory_files import memory_file
from ros_kvstream.node.messages import to_seconds
from ros_kvstream.node.parameters import NodeParameters
from ros_kvstream.node.questions import PendingQuestion
from ros_kvstream.node.reporting import Reporter, Session
from ros_kvstream.node.services import Services
from ros_kvstream.node.worker import Worker, WorkerEvents, describe
from ros_kvstream.records import Observation

SUCCESS, FAILURE = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE
TICK_SECONDS = 0.05
"""Between two ticks by which the executor's lateness is measured."""
STOP_SECONDS = 10.0
"""How long a cleanup waits for the worker to end its present step."""


class KvStreamNode(LifecycleNode):
    """Owns the worker, the cameras and the reports. All methods run in the executor's thread unless they say so."""

    def __init__(self, **arguments: Any) -> None:
        """Declare parameters, publishers and services; raise SettingsError for a bad parameter value."""
        super().__init__("kvstream", **arguments)
        self.parameters = NodeParameters(self, lambda: self._session is None, self._new_budget)
        self._reporter = Reporter(self, self.parameters)
        self._handlers = Services(self, self.parameters, self._reporter)
        self._kept_tokens = KeptTokens(self)
        self._faults_in_a_row = 0
        self.released = False
        """Whether the worker had ended when the node was destroyed."""
        self._survive_wrong_transitions()
        self._ticked = time.monotonic()
        self.create_timer(TICK_SECONDS, self._tick, clock=Clock(clock_type=ClockType.STEADY_TIME))
        self._heartbeat = Heartbeat(
            lambda: self.parameters.value("diagnostics.period_s"), self._reporter.report,
            lambda error: self.get_logger().error(f"report failed: {describe(error)}"))

    @property
    def _session(self) -> Session | None:
        return self._reporter.session if hasattr(self, "_reporter") else None

    def _survive_wrong_transitions(self) -> None:
        """Answer a transition that the present state does not have with success = false; rclpy would raise and end."""
        service = self._service_change_state
        change_state = service.callback

        def safely(request: Any, response: Any) -> Any:
            try:
                return change_state(request, response)
            except Exception as error:  # noqa: BLE001 - any peer can ask for any transition
                self.get_logger().warning(f"transition refused: {describe(error)}")
                response.success = False
                return response

        service.callback = safely

    # -- transitions ------------------------------------------------------------------------------------------------

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load the model and allocate the memory; FAILURE with the reason in the log and in diagnostics."""
        self._reporter.state, self._reporter.failure = "configuring", ""
        try:
            self._reporter.session = self._make_session()
        except Exception as error:  # noqa: BLE001 - rclpy would swallow it without a word
            return self._failed("configure", "unconfigured", error)
        self._reporter.state = "inactive"
        self.get_logger().info(f"Configured: {self._reporter.session.model}, {self._reporter.session.policy}, "
                               f"{self.parameters.value('memory.budget_mib'):g} MiB.")
        return super().on_configure(state)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Subscribe to the cameras and take frames."""
        session = self._session
        assert session is not None
        try:
            for camera in session.camera_settings:
                session.cameras.append(CameraSubscription(self, camera, session.account, self._store))
        except Exception as error:  # noqa: BLE001 - for example a topic name that is none
            self._unsubscribe(session)
            return self._failed("activate", "inactive", error)
        session.worker.ingest(True)
        self._reporter.state, self._reporter.failure = "active", ""
        self.get_logger().info("Active: " + ", ".join(f"{camera.camera.name} on {camera.topic}"
                                                      for camera in session.cameras) + ".")
        return super().on_activate(state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Unsubscribe; waiting frames are dropped and counted, open questions are refused. The memory stays."""
        if self._session is not None:
            self._leave_active(self._session)
        self._reporter.state = "inactive"
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Give everything back."""
        if not self._release():
            return self._failed("cleanup", "inactive", KvStreamError(
                f"the worker did not end within {STOP_SECONDS:g} s; clean up again."))
        self._reporter.state, self._reporter.failure = "unconfigured", ""
        return super().on_cleanup(state)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Give everything back, from any state."""
        self._release()
        self._reporter.state = "finalized"
        return super().on_shutdown(state)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """After an error in a transition: give everything back, so that configure can be tried again."""
        released = self._release()
        self._reporter.state = "unconfigured" if released else "finalized"
        return SUCCESS if released else FAILURE

    def _failed(self, transition: str, state: str, error: BaseException) -> TransitionCallbackReturn:
        self._reporter.state = state
        self._reporter.failure = f"{transition} failed: {describe(error)}"
        self.get_logger().error(self._reporter.failure)
        return FAILURE

    # -- building and taking down -----------------------------------------------------------------------------------

    def _make_session(self) -> Session:
        settings, depth = self.parameters.stream_settings(), self.parameters.depth()
        account = FrameAccount()
        frames = FrameQueue(self.parameters.value("ingest.queue_frames"), account)
        events = WorkerEvents(self._observed, self._frame_refused, self._fault, self._token)
        worker = Worker(frames, account, lambda message: convert(message, depth), events)
        session = Session(worker, frames, account, settings.memory.policy, self.parameters.cameras())

        restore = self._restore_from()

        def make_memory() -> Any:
            from ros_kvstream.stream import VideoMemory  # imports torch: seconds, and only in the worker's thread

            memory = VideoMemory(settings)
            if restore is not None:
                memory.load(restore)
            return memory

        self._wait(worker.start(make_memory))
        session.model, session.trained, session.check_budget = self._wait(worker.call(
            lambda memory: (memory.model_name, memory.model.trained, memory.check_budget)))
        return session

    def _restore_from(self) -> Path | None:
        """File that the memory starts from; None when it starts empty."""
        name = self.parameters.value("memory.restore")
        if not name:
            return None
        path = memory_file(self.parameters.value("memory.directory"), name)
        if path.exists():
            return path
        self.get_logger().info(f"memory.restore: there is no {path.name} yet; the memory starts empty.")
        return None

    def _wait(self, done: Future[Any]) -> Any:
        """Wait for the worker in a transition, in short steps so that a signal ends it."""
        while self.context.ok():
            try:
                return done.result(timeout=0.1)
            except NotYet:
                if done.done():  # the worker's own time-out error, not ours
                    return done.result()
        raise KvStreamError("the node is being shut down.")

    def _unsubscribe(self, session: Session) -> None:
        cameras, session.cameras = session.cameras, []
        for camera in cameras:
            camera.destroy()

    def _leave_active(self, session: Session) -> None:
        self._unsubscribe(session)
        session.worker.ingest(False)
        session.frames.drain(DropCause.INACTIVE)
        session.worker.give_up_questions("the node was deactivated")

    def _release(self) -> bool:
        """Stop the worker and forget the session; False when the worker has not ended."""
        session = self._session
        if session is None:
            return True
        self._leave_active(session)
        if not session.worker.stop(STOP_SECONDS):
            return False
        self._reporter.session = None
        return True

    def _new_budget(self, budget_mib: float) -> None:
        """Give the live memory a new budget after the worker's present step; raise BudgetError for too small a one."""
        session = self._session
        if session is None:
            return
        before = self.parameters.value("memory.budget_mib")
        session.check_budget(budget_mib)

        def applied(done: Future[None]) -> None:
            if error := done.exception():
                self._fault("new memory.budget_mib", error)
                self._in_executor(lambda: self.set_parameters([Parameter("memory.budget_mib", value=before)]))

        session.worker.call(lambda memory: memory.set_budget(budget_mib)).add_done_callback(applied)

    def destroy_node(self) -> None:
        """Stop the threads, then destroy what they use."""
        self._heartbeat.stop()
        self.released = self._release()
        self._handlers.destroy()
        super().destroy_node()

    def _tick(self) -> None:
        """Note how much later than due the executor came by: what a blocking callback would show in."""
        now = time.monotonic()
        self._reporter.meters.add("executor lateness", 1e3 * max(0.0, now - self._ticked - TICK_SECONDS))
        self._ticked = now

    # -- frames -----------------------------------------------------------------------------------------------------

    def _store(self, frame: QueuedFrame) -> None:
        """Put an arrived frame into the queue. A frame without a stamp gets the time of its arrival."""
        session = self._session
        if session is None:
            return
        if frame.stamp == 0.0:
            frame = replace(frame, stamp=to_seconds(self.get_clock().now().to_msg()))
        self._reporter.meters.add("arrived", 0.0)
        session.frames.put(frame)
        session.worker.frame_waiting()

    # -- told by the worker, in its thread --------------------------------------------------------------------------

    def _observed(self, frame: QueuedFrame, pixels: Rgb, observation: Observation, memory: Any) -> None:
        self._faults_in_a_row = 0
        self._reporter.observed(frame, observation)
        self._kept_tokens.observed(frame, pixels, observation, memory.kept_patches)

    def _frame_refused(self, frame: QueuedFrame, error: FrameError) -> None:
        self._reporter.refused(frame.camera, str(error))
        self.get_logger().warning(f"Camera '{frame.camera}': frame dropped: {error}", throttle_duration_sec=5.0)

    def _fault(self, what: str, error: BaseException) -> None:
        self._faults_in_a_row += 1
        reason = describe(error)
        self._reporter.fault(f"{what}: {reason}")
        self.get_logger().error(f"Error inside the memory, {what} given up: {reason}", throttle_duration_sec=1.0)
        if (self.parameters.value("faults.action") == "deactivate"
                and self._faults_in_a_row == self.parameters.value("faults.limit")):
            self._in_executor(self._deactivate_for_faults)

    def _token(self, pending: PendingQuestion, text: str, index: int) -> None:
        self._handlers.token(pending, text, index)

    def _in_executor(self, function: Callable[[], None]) -> None:
        if self.executor is not None:
            self.executor.create_task(function)

    def _deactivate_for_faults(self) -> None:
        if self._reporter.state == "active":
            self.get_logger().error("Deactivating after repeated errors (faults.action).")
            self.trigger_deactivate()
            self._reporter.failure = "deactivated after repeated errors inside the memory (faults.action)"


def convert(message: Any, depth: DepthRendering) -> Rgb:
    """Convert an image message of either type; raise FrameError when it is no picture."""
    return compressed_to_rgb(message, depth) if hasattr(message, "format") else image_to_rgb(message, depth)


