# SPDX-License-Identifier: Apache-2.0
"""Lifecycle node ``kvstream``: configure loads and allocates, activate subscribes, cleanup releases everything."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lifecycle_msgs.msg import Transition
from rcl_interfaces.msg import SetParametersResult
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.exceptions import ParameterException
from rclpy.lifecycle import LifecycleNode, LifecycleNodeMixin, LifecycleState, TransitionCallbackReturn
from rclpy.node import Node
from rclpy.parameter import Parameter

from ros_kvstream.errors import FrameError, KvStreamError, SettingsError
from ros_kvstream.node.cameras import CameraSubscription
from ros_kvstream.node.frame_counters import DropCause
from ros_kvstream.node.frame_queue import QueuedFrame
from ros_kvstream.node.images import Rgb
from ros_kvstream.node.kept_tokens import KeptTokens
from ros_kvstream.node.messages import to_seconds
from ros_kvstream.node.metrics import Metrics
from ros_kvstream.node.parameters import NodeParameters
from ros_kvstream.node.place_markers import PlaceMarkers
from ros_kvstream.node.reporting import Heartbeat, Reporter
from ros_kvstream.node.services import Services, finished
from ros_kvstream.node.session import NodeStatus, Session, make_session
from ros_kvstream.node.worker import WorkerEvents, describe
from ros_kvstream.records import Observation
from ros_kvstream.settings import StreamSettings

if TYPE_CHECKING:
    from ros_kvstream.stream.memory import VideoMemory

CONFIGURE, CLEANUP = Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_CLEANUP
ACTIVATE = Transition.TRANSITION_ACTIVATE
SUCCESS, FAILURE = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE
AUTOSTARTED = (" This node configures and activates itself: set its parameter autostart to false when a lifecycle "
               "manager does that.")
TICK_SECONDS = 0.05
"""Period of the timer that measures the executor lateness."""
END_SECONDS = 7.0
"""How long the end of the process waits for the worker, such as for a save: launch kills it 10 s after SIGINT."""
STOP_SECONDS = 10.0
"""How long a cleanup waits for the worker to finish its current step."""


class KvStreamNode(LifecycleNode):
    """Owns the session, the reports and the services. Methods run in the executor thread unless stated otherwise."""

    def __init__(self, **arguments: Any) -> None:
        """Declare parameters, publishers and services; raise SettingsError for an invalid parameter value."""
        try:
            Node.__init__(self, "kvstream", **arguments)
        except ParameterException as error:  # for a parameter that rclpy declares, such as use_sim_time: 1
            raise SettingsError(f"{str(error).rpartition(': ')[0]}.") from error
        # A transition awaits the worker; with a reentrant group the other lifecycle services run in the meantime.
        # LifecycleNode.__init__ does not pass the group on, so the two initializers that it calls are called here.
        LifecycleNodeMixin.__init__(self, callback_group=ReentrantCallbackGroup())
        self.status = NodeStatus()
        self._in_transition = False
        """Whether a transition is awaiting the worker."""
        self._stop_seconds = STOP_SECONDS
        """How long ``on_cleanup`` waits for the worker; 0 when the transition has waited already."""
        self.parameters = NodeParameters(
            self, lambda: self.status.session is None and not self._in_transition, self._new_budget,
            self._new_settings)
        self.metrics = Metrics()
        self._reporter = Reporter(self, self.parameters, self.metrics)
        self._place_markers = PlaceMarkers(self)
        self._endpoints = Services(
            self, self.parameters, self.status, self._reporter, lambda memory: self._place_markers.draw(memory.places))
        self._kept_tokens = KeptTokens(self)
        self._faults_in_a_row = 0
        self.released = False
        """Whether the worker had ended by the time the node was destroyed."""
        self._prepared: Session | Exception | None = None
        """The session that ``on_configure`` takes over, or the error."""
        self._make_transitions_asynchronous()
        self._ticked = time.monotonic()
        self.create_timer(TICK_SECONDS, self._tick, clock=Clock(clock_type=ClockType.STEADY_TIME))
        self._heartbeat = Heartbeat(
            lambda: self.parameters.value("diagnostics.period_s"), lambda: self._reporter.report(self.status),
            lambda error: self.get_logger().error(f"report failed: {describe(error)}"))

    def set_parameters_atomically(self, parameter_list: list[Parameter]) -> SetParametersResult:
        """Set all parameters or none; a read-only one is accepted with its present value, which rclpy refuses.

        The parameter services call this, so that `ros2 param load` accepts a dump of this node.
        """
        def fixed(parameter: Parameter) -> bool:
            if not self.has_parameter(parameter.name) or not self.describe_parameter(parameter.name).read_only:
                return False
            present = self.get_parameter(parameter.name)
            return (parameter.type_, parameter.value) == (present.type_, present.value)

        changed = [parameter for parameter in parameter_list if not fixed(parameter)]
        if parameter_list and not changed:
            return SetParametersResult(successful=True)
        return super().set_parameters_atomically(changed)

    def _make_transitions_asynchronous(self) -> None:
        """Wrap the callback of ~/change_state so that it does not block, and answers an invalid transition.

        The callback of rclpy blocks the executor during a transition, and raises for one that is not possible now.
        """
        service = next(service for service in self.services if service.service_name.endswith("/change_state"))
        change_state = service.callback

        async def change_state_asynchronously(request: Any, response: Any) -> Any:
            response.success = False
            try:
                if self._in_transition:
                    raise KvStreamError("another transition is in progress: wait until it has ended.")
                if request.transition.id == CONFIGURE or request.transition.label == "configure":
                    await self._prepare()
                elif request.transition.id == CLEANUP or request.transition.label == "cleanup":
                    await self._stop_worker()
                return change_state(request, response)
            except Exception as error:  # noqa: BLE001 - a peer may request any transition at any time
                upward = request.transition.id in (CONFIGURE, ACTIVATE) or request.transition.label in (
                    "configure", "activate")
                started = upward and self.status.state != "unconfigured" and self.parameters.value("autostart")
                self.get_logger().warning(f"Transition rejected: {describe(error)}{AUTOSTARTED if started else ''}")
                return response

        service.callback = change_state_asynchronously

    async def start(self) -> None:
        """Configure and activate; after a failure, which is logged, the node stays unconfigured."""
        await self._prepare()
        try:
            if self.trigger_configure() == SUCCESS:
                self.trigger_activate()
        except Exception as error:  # noqa: BLE001 - such as a transition by a client in between
            self.get_logger().warning(f"autostart failed: {describe(error)}")

    async def _prepare(self) -> None:
        """Create the next session without blocking the executor; ``on_configure`` takes it or reports the error."""
        if self.status.state != "unconfigured":
            return
        try:
            events = WorkerEvents(
                self._observed, self._frame_refused, self._image_loss, self._fault, self._endpoints.token)
            making = make_session(self.parameters, events, self.get_logger().info)
            self._in_transition, self.status.state, self.status.failure = True, "configuring", ""
            self._prepared = await finished(self, making)
        except Exception as error:  # noqa: BLE001 - reported by on_configure
            self._prepared = error
        self._in_transition, self.status.state = False, "unconfigured"

    async def _stop_worker(self) -> None:
        """Stop the worker without blocking the executor; ``on_cleanup`` reports whether it ended."""
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
        """Take over the prepared session; on FAILURE the reason is in the log and in /diagnostics."""
        prepared, self._prepared = self._prepared, None
        if not isinstance(prepared, Session):
            return self._failed("configure", "unconfigured", prepared or KvStreamError("no session was prepared."))
        self.status.session, self.status.state, self.status.failure = prepared, "inactive", ""
        self.get_logger().info(f"Configured: {prepared.memory.model_name}, {prepared.policy}, "
                               f"{self.parameters.value('memory.budget_mib'):g} MiB.")
        return super().on_configure(state)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Subscribe to the cameras and start taking frames."""
        session = self.status.session
        assert session is not None
        try:
            for camera in session.camera_settings:
                session.cameras.append(
                    CameraSubscription(self, camera, session.counters, self._store, self.metrics))
            if session.poses is not None:
                session.poses.source.subscribe(self, self._pose_received)
        except Exception as error:  # noqa: BLE001 - for example an invalid topic name
            self._unsubscribe(session)
            return self._failed("activate", "inactive", error)
        session.worker.ingest(True)
        self.status.state, self.status.failure = "active", ""
        self.get_logger().info("Active: " + ", ".join(f"{camera.camera.name} on {camera.topic}"
                                                      for camera in session.cameras) + ".")
        return super().on_activate(state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Unsubscribe, drop and count the waiting frames, cancel open questions; keep the memory."""
        if self.status.session is not None:
            self._leave_active(self.status.session)
        self.status.state = "inactive"
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release everything."""
        if not self._release():
            return self._failed("cleanup", "inactive", KvStreamError(
                f"the worker did not end within {STOP_SECONDS:g} s; clean up again."))
        self.status.state, self.status.failure = "unconfigured", ""
        return super().on_cleanup(state)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release everything, from any state."""
        self._release()
        self.status.state = "finalized"
        return super().on_shutdown(state)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release everything after an error in a transition, so that configure can be tried again."""
        released = self._release()
        self.status.state = "unconfigured" if released else "finalized"
        return SUCCESS if released else FAILURE

    def _failed(self, transition: str, state: str, error: BaseException) -> TransitionCallbackReturn:
        self.status.state = state
        self.status.failure = f"{transition} failed: {describe(error)}"
        self.get_logger().error(self.status.failure)
        return FAILURE

    # -- session ----------------------------------------------------------------------------------------------------

    def _unsubscribe(self, session: Session) -> None:
        cameras, session.cameras = session.cameras, []
        for camera in cameras:
            camera.destroy()
        if session.poses is not None:
            session.poses.source.unsubscribe()

    def _leave_active(self, session: Session) -> None:
        self._unsubscribe(session)
        session.worker.ingest(False)
        session.frames.drain(DropCause.INACTIVE)
        session.worker.cancel_questions("the node was deactivated")

    def _release(self) -> bool:
        """Stop the worker and drop the session; False when the worker did not end in time."""
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
        """Change the budget of a live memory after the current step; raise BudgetError when it is too small."""
        session = self.status.session
        if session is None:
            return
        before = self.parameters.value("memory.budget_mib")
        session.memory.check_budget(budget_mib)

        def applied(done: Future[None]) -> None:
            if error := done.exception():
                self._fault("new memory.budget_mib", error)
                self._in_executor(lambda: self.set_parameters([Parameter("memory.budget_mib", value=before)]))

        session.worker.call(lambda memory: memory.set_budget(budget_mib)).add_done_callback(applied)

    def _new_settings(self, settings: StreamSettings) -> None:
        """Change the settings of a live memory after the worker's current step; raise SettingsError if they are bad."""
        session = self.status.session
        if session is None:
            return
        session.memory.check_settings(settings)
        session.policy = settings.memory.policy

        def applied(done: Future[None]) -> None:
            if error := done.exception():
                self._fault("new settings", error)

        session.worker.call(lambda memory: memory.reconfigure(settings)).add_done_callback(applied)

    def destroy_node(self) -> None:
        """Stop the threads, then destroy the entities that they use."""
        if not hasattr(self, "_heartbeat"):  # the constructor raised; since Kilted the context destroys the node then
            return super().destroy_node()
        self._heartbeat.stop()
        self._stop_seconds = END_SECONDS
        self.released = not self._in_transition and self._release()
        self._endpoints.destroy()
        super().destroy_node()

    def _tick(self) -> None:
        """Record the executor lateness: the delay between the timer's due time and this callback, in ms."""
        now = time.monotonic()
        self.metrics.add("executor lateness", 1e3 * max(0.0, now - self._ticked - TICK_SECONDS))
        self._ticked = now

    # -- frames -----------------------------------------------------------------------------------------------------

    def _store(self, frame: QueuedFrame) -> None:
        """Put a received frame into the queue; a frame without a stamp gets its arrival time."""
        session = self.status.session
        if session is None:
            return
        if frame.stamp == 0.0:
            frame = replace(frame, stamp=to_seconds(self.get_clock().now().to_msg()))
        self.metrics.add("arrived", 0.0)
        session.frames.put(frame)
        session.worker.notify()

    def _pose_received(self) -> None:
        """Wake the worker where frames wait for poses."""
        session = self.status.session
        if session is not None and session.poses is not None and session.poses.waiting:
            session.worker.notify()

    # -- events of the worker, in its thread ------------------------------------------------------------------------

    def _observed(self, frame: QueuedFrame, pixels: Rgb, observation: Observation, memory: VideoMemory) -> None:
        self._faults_in_a_row = 0
        self._reporter.observed(frame, observation)
        self._kept_tokens.observed(frame, pixels, observation, memory.kept_patches)
        self._place_markers.observed(memory.places)

    def _frame_refused(self, frame: QueuedFrame, error: FrameError) -> None:
        self._reporter.refused(frame.camera, str(error))
        self.get_logger().warning(f"Camera '{frame.camera}': frame dropped: {error}", throttle_duration_sec=5.0)

    def _image_loss(self, frame: QueuedFrame, text: str) -> None:
        self._reporter.lost_detail(frame.camera, text)
        self.get_logger().warning(f"Camera '{frame.camera}': {text}", throttle_duration_sec=60.0)

    def _fault(self, what: str, error: BaseException) -> None:
        self._faults_in_a_row += 1
        reason = describe(error)
        self._reporter.fault(f"{what}: {reason}")
        self.get_logger().error(f"Error inside the memory, {what} dropped: {reason}", throttle_duration_sec=1.0)
        faults = self.parameters.node_settings().faults
        if faults.action == "deactivate" and self._faults_in_a_row == faults.limit:
            self._in_executor(self._deactivate_for_faults)

    def _in_executor(self, function: Callable[[], None]) -> None:
        if self.executor is not None:
            self.executor.create_task(function)

    def _deactivate_for_faults(self) -> None:
        if self.status.state == "active":
            self.get_logger().error("Deactivating after repeated errors (faults.action).")
            self._faults_in_a_row = 0
            self.trigger_deactivate()
            self.status.failure = "deactivated after repeated errors inside the memory (faults.action)"
