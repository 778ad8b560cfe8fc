"""The soak's side of ROS: two cameras, questions with limits, lifecycle, parameters and memory files."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from std_srvs.srv import Trigger

from ros_kvstream.commands.soak_cameras import CameraPlan, SoakCamera
from ros_kvstream.evaluation.node_client import NodeClient
from ros_kvstream.evaluation.processes import Process
from ros_kvstream.srv import MemoryFile, Query

FILE = "soak"
TRANSITIONS = {"activate": Transition.TRANSITION_ACTIVATE, "deactivate": Transition.TRANSITION_DEACTIVATE}


class SoakClient(NodeClient):
    """A NodeClient with cameras. Calls return futures that hold '' or the reason of a refusal."""

    def __init__(self, domain: int, plans: Sequence[CameraPlan], seed: int, node: str = "/kvstream") -> None:
        super().__init__(domain, node)
        self.cameras = [SoakCamera(self._node, plan, seed + index) for index, plan in enumerate(plans)]
        self.latency: dict[str, str] = {}
        """The newest figures of the diagnostic status "latency", by name."""
        self._node.create_subscription(DiagnosticArray, "/diagnostics", self._diagnosed, 10)
        self._parameters = self._node.create_client(SetParameters, f"{node}/set_parameters")
        self._clear = self._node.create_client(Trigger, f"{node}/clear")
        self._save = self._node.create_client(MemoryFile, f"{node}/save")
        self._load = self._node.create_client(MemoryFile, f"{node}/load")

    def _diagnosed(self, array: DiagnosticArray) -> None:
        for status in array.status:
            if status.name.endswith(": latency"):
                self.latency = {value.key: value.value for value in status.values}

    def __enter__(self) -> SoakClient:
        return self

    def wait_for_cameras(self, process: Process, timeout: float = 300.0) -> None:
        """Wait until the node (which starts by itself) listens to every camera and answers."""
        process.wait_for(lambda: all(camera.connected for camera in self.cameras), "subscribing", timeout)
        for client in (self._query, self._parameters, self._clear, self._save, self._load, self._change_state):
            self._find(client, process, f"offering {client.srv_name}", timeout)

    def ask_with(self, question: str, **limits: Any) -> Future[Query.Response]:
        """Ask with limits; the future holds the response."""
        return self._call(self._query, Query.Request(question=question, **limits))

    def transition(self, name: str) -> Future[str]:
        """Ask for a lifecycle transition."""
        request = ChangeState.Request(transition=Transition(id=TRANSITIONS[name]))
        return self._judged(self._change_state, request, lambda response: "" if response.success else "refused")

    def set_parameter(self, name: str, value: float) -> Future[str]:
        """Set a number."""
        request = SetParameters.Request(parameters=[Parameter(name, value=value).to_parameter_msg()])
        return self._judged(self._parameters, request, lambda response: response.results[0].reason)

    def save(self) -> Future[str]:
        """Call ~/save."""
        return self._judged(self._save, MemoryFile.Request(name=FILE), lambda response: response.message)

    def load(self) -> Future[str]:
        """Call ~/load."""
        return self._judged(self._load, MemoryFile.Request(name=FILE), lambda response: response.message)

    def clear(self) -> Future[str]:
        """Call ~/clear."""
        return self._judged(self._clear, Trigger.Request(), lambda done: "" if done.success else done.message)

    def _judged(self, client: Any, request: Any, judge: Any) -> Future[str]:
        """Call a service; the future holds '' or the reason of the refusal."""
        judged: Future[str] = Future()

        def hand_over(done: Future[Any]) -> None:
            try:
                judged.set_result(str(judge(done.result())))
            except Exception as error:  # noqa: BLE001 - told to whoever waits
                judged.set_exception(error)

        self._call(client, request).add_done_callback(hand_over)
        return judged
