# SPDX-License-Identifier: Apache-2.0
"""The lifecycle node ``kvstream``: configure loads and allocates, activate subscribes, cleanup gives all back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from lifecycle_msgs.msg import Transition
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNodeMixin, LifecycleState, TransitionCallbackReturn
from rclpy.node import Node
from rclpy.parameter import Parameter

from ros_kvstream.errors import FrameError, KvStreamError
from ros_kvstream.node.cameras import CameraSubscription
from ros_kvstream.node.frame_counters import DropCause
from ros_kvstream.node.frame_queue import QueuedFrame
from ros_kvstream.node.images import Rgb
from ros_kvstream.node.kept_tokens import KeptTokens
from ros_kvstream.node.messages import to_seconds
from ros_kvstream.node.metrics import Metrics
from ros_kvstream.node.parameters import NodeParameters
from ros_kvstream.node.questions import PendingQuestion
from ros_kvstream.node.reporting import Heartbeat, Reporter
from ros_kvstream.node.services import Services, finished
from ros_kvstream.node.session import NodeStatus, Session, make_session
from ros_kvstream.node.worker import WorkerEvents, describe
from ros_kvstream.records import Observation
from ros_kvstream.settings import StreamSettings

CONFIGURE, CLEANUP = Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_CLEANUP
SUCCESS, FAILURE = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE
TICK_SECONDS = 0.05
"""Between two ticks by which the executor's lateness is measured."""
STOP_SECONDS = 10.0
"""How long a cleanup waits for the worker to end its present step."""


class KvStreamNode(LifecycleNodeMixin, Node):
    """Owns the worker, the cameras and the reports. All methods run in the executor's thread unless they say so."""

    def __init__(self, **arguments: Any) -> None:
        """Declare parameters, publishers and services; raise SettingsError for a bad parameter value."""
        Node.__init__(self, "kvstream", **arguments)
        # A transition awaits the worker; a reentrant group lets the other lifecycle services run in the meantime.
        LifecycleNodeMixin.__init__(self, callback_group=ReentrantCallbackGroup())
        self.status = NodeStatus()
        self._in_transition = False
        """Whether an asynchronous transition is in progress."""
        self._stop_seconds = STOP_SECONDS
        """How long to wait for the worker to end; 0 after that time has passed already."""
        self.parameters = NodeParameters(
            self, lambda: self.status.session is None and not self._in_transition, self._new_budget,
            self._new_settings)
        self.metrics = Metrics()
        self._reporter = Reporter(self, self.parameters, self.metrics)
        self._handlers = Services(self, self.parameters, self.status, self._reporter)
        self._kept_tokens = KeptTokens(self)
        self._faults_in_a_row = 0
        self.released = False
        """Whether the worker had ended when the node was destroyed."""
        self._prepared: Session | Exception | None = None
        """What ``on_configure`` takes: the next session, or why there is none."""
        self._make_transitions_asynchronous()
        self._ticked = time.monotonic()
        self.create_timer(TICK_SECONDS, self._tick, clock=Clock(clock_type=ClockType.STEADY_TIME))
        self._heartbeat = Heartbeat(
            lambda: self.parameters.value("diagnostics.period_s"), lambda: self._reporter.report(self.status),
            lambda error: self.get_logger().error(f"report failed: {describe(error)}"))

    def _make_transitions_asynchronous(self) -> None:
        """Load models and stop workers without blocking the executor, and refuse a bad transition with success = false.

        rclpy's own callback blocks during a transition, and raises for a transition that the present state does not have.
        """
        service = next(service for service in self.services if service.service_name.endswith("/change_state"))
        change_state = service.callback

        async def change_state_asynchronously(request: Any, response: Any) -> Any:
            response.success = False
            try:
                if self._in_transition:
                    raise KvStreamError("the node is in another transition: wait until it has ended.")
                if request.transition.id == CONFIGURE or request.transition.label == "configure":
                    await self._prepare()
                elif request.transition.id == CLEANUP or request.transition.label == "cleanup":
                    await self._stop_worker()
                return change_state(request, response)
            except Exception as error:  # noqa: BLE001 - any peer can request any transition
                self.get_logger().warning(f"Transition refused: {describe(error)}")
                return response

        service.callback = change_state_asynchronously

    async def start(self) -> None:
        """Configure and activate; a failure is logged and leaves the node unconfigured."""
        await self._prepare()
        try:
            if self.trigger_configure() == SUCCESS:
                self.trigger_activate()
        except Exception as error:  # noqa: BLE001 - another transition came between; here it would end the executor
            self.get_logger().warning(f"autostart ended: {describe(error)}")

    async def _prepare(self) -> None:
        """Make the next session while the executor goes on; what comes of it is for ``on_configure`` to tell."""
        if self.status.state != "unconfigured":
            return
        try:
            making = make_session(self.parameters, self._events(), self.get_logger())
            self._in_transition, self.status.state, self.status.failure = True, "configuring", ""
            self._prepared = await finished(self, making)
        except Exception as error:  # noqa: BLE001 - rclpy would swallow it without a word
            self._prepared = error
        self._in_transition, self.status.state = False, "unconfigured"

    async def _stop_worker(self) -> None:
        """Let the worker end while the executor goes on; whether it did is for ``on_cleanup`` to tell."""
        session = self.status.session
        if session is None or self.status.state != "inactive":
            return
        ended: Future[bool] = Future()
        waiter = threading.Thread(target=lambda: ended.set_result(session.worker.stop(STOP_SECONDS)), daemon=True)
        self._in_transition = True
        waiter.start()
        self._stop_seconds = STOP_SECONDS if await finished(self, ended) else 0.0
        self._in_transition = False

    # -- transitions ------------------------------------------------------------------------------------------------

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Take over the memory that was prepared; FAILURE with the reason in the log and in diagnostics."""
        prepared, self._prepared = self._prepared, None
        if not isinstance(prepared, Session):
            return self._failed("configure", "unconfigured", prepared or KvStreamError("nothing was prepared."))
        self.status.session, self.status.failure = prepared, ""
        self.status.state = "inactive"
        self.get_logger().info(f"Configured: {self.status.session.model}, {self.status.session.policy}, "
                               f"{self.parameters.value('memory.budget_mib'):g} MiB.")
        return super().on_configure(state)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Subscribe to the cameras and take frames."""
        session = self.status.session
        assert session is not None
        try:
            for camera in session.camera_settings:
                session.cameras.append(CameraSubscription(self, camera, session.counters, self._store,
                                                          self.metrics))
        except Exception as error:  # noqa: BLE001 - for example a topic name that is none
            self._unsubscribe(session)
            return self._failed("activate", "inactive", error)
        session.worker.ingest(True)
        self.status.state, self.status.failure = "active", ""
        self.get_logger().info("Active: " + ", ".join(f"{camera.camera.name} on {camera.topic}"
                                                      for camera in session.cameras) + ".")
        return super().on_activate(state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Unsubscribe; waiting frames are dropped and counted, open questions are refused. The memory stays."""
        if self.status.session is not None:
            self._leave_active(self.status.session)
        self.status.state = "inactive"
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Give everything back."""
        if not self._release():
            return self._failed("cleanup", "inactive", KvStreamError(
                f"the worker did not end within {STOP_SECONDS:g} s; clean up again."))
        self.status.state, self.status.failure = "unconfigured", ""
        return super().on_cleanup(state)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Give everything back, from any state."""
        self._release()
        self.status.state = "finalized"
        return super().on_shutdown(state)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """After an error in a transition: give everything back, so that configure can be tried again."""
        released = self._release()
        self.status.state = "unconfigured" if released else "finalized"
        return SUCCESS if released else FAILURE

    def _failed(self, transition: str, state: str, error: BaseException) -> TransitionCallbackReturn:
        self.status.state = state
        self.status.failure = f"{transition} failed: {describe(error)}"
        self.get_logger().error(self.status.failure)
        return FAILURE

    # -- building and taking down -----------------------------------------------------------------------------------

    def _events(self) -> WorkerEvents:
        return WorkerEvents(self._observed, self._frame_refused, self._fault, self._token)

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
        session = self.status.session
        if session is None:
            return True
        self._leave_active(session)
        seconds, self._stop_seconds = self._stop_seconds, STOP_SECONDS
        if not session.worker.stop(seconds):
            return False
        self.status.session = None
        return True

    def _new_budget(self, budget_mib: float) -> None:
        """Give the live memory a new budget after the worker's present step; raise BudgetError for too small a one."""
        session = self.status.session
        if session is None:
            return
        before = self.parameters.value("memory.budget_mib")
        session.check_budget(budget_mib)

        def applied(done: Future[None]) -> None:
            if error := done.exception():
                self._fault("new memory.budget_mib", error)
                self._in_executor(lambda: self.set_parameters([Parameter("memory.budget_mib", value=before)]))

        session.worker.call(lambda memory: memory.set_budget(budget_mib)).add_done_callback(applied)

    def _new_settings(self, settings: StreamSettings) -> None:
        """Give the live memory other settings after the worker's present step; raise SettingsError to refuse them."""
        session = self.status.session
        if session is None:
            return
        session.check_settings(settings)
        session.policy = settings.memory.policy

        def applied(done: Future[None]) -> None:
            if error := done.exception():
                self._fault("new settings", error)

        session.worker.call(lambda memory: memory.reconfigure(settings)).add_done_callback(applied)

    def destroy_node(self) -> None:
        """Stop the threads, then destroy what they use."""
        if not hasattr(self, "_heartbeat"):  # refused while it was made: since Kilted the context destroys it then
            return super().destroy_node()
        self._heartbeat.stop()
        self.released = not self._in_transition and self._release()
        self._handlers.destroy()
        super().destroy_node()

    def _tick(self) -> None:
        """Note how much later than due the executor came by: what a blocking callback would show in."""
        now = time.monotonic()
        self.metrics.add("executor lateness", 1e3 * max(0.0, now - self._ticked - TICK_SECONDS))
        self._ticked = now

    # -- frames -----------------------------------------------------------------------------------------------------

    def _store(self, frame: QueuedFrame) -> None:
        """Put an arrived frame into the queue. A frame without a stamp gets the time of its arrival."""
        session = self.status.session
        if session is None:
            return
        if frame.stamp == 0.0:
            frame = replace(frame, stamp=to_seconds(self.get_clock().now().to_msg()))
        self.metrics.add("arrived", 0.0)
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
        if self.status.state == "active":
            self.get_logger().error("Deactivating after repeated errors (faults.action).")
            self._faults_in_a_row = 0
            self.trigger_deactivate()
            self.status.failure = "deactivated after repeated errors inside the memory (faults.action)"
