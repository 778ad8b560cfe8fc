"""~/query and ~/clear: handlers that wait for the worker without blocking the executor."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future as WorkerFuture
from typing import Any

from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.lifecycle import LifecycleNode
from rclpy.task import Future
from std_srvs.srv import Trigger

from ros_kvstream import msg
from ros_kvstream.errors import KvStreamError, QuestionError
from ros_kvstream.node.messages import answer_message, fill_answer, fill_refusal, question_from
from ros_kvstream.node.parameters import NodeParameters
from ros_kvstream.node.questions import PendingQuestion, Question
from ros_kvstream.node.reporting import Reporter
from ros_kvstream.node.worker import describe
from ros_kvstream.records import Answer
from ros_kvstream.srv import Query


class Services:
    """The node's services. Handlers run in the executor's thread and never raise."""

    def __init__(self, node: LifecycleNode, parameters: NodeParameters, reporter: Reporter) -> None:
        self._node = node
        self._parameters = parameters
        self._reporter = reporter
        group = ReentrantCallbackGroup()  # several questions may wait at once
        self._answers = node.create_lifecycle_publisher(msg.Answer, "~/answers", 10)
        node.create_service(Query, "~/query", self._query, callback_group=group)
        node.create_service(Trigger, "~/clear", self._clear, callback_group=group)

    async def _query(self, request: Query.Request, response: Query.Response) -> Query.Response:
        """Answer one question, or say why not."""
        try:
            question = question_from(request, self._parameters.value("query.timeout_s"))
            answer = await self._ask(question)
            self._reporter.answered(answer)
            fill_answer(response, answer, self._reporter.stats())
        except Exception as error:  # noqa: BLE001 - an exception here would end the executor
            self._log_unexpected("query", error)
            fill_refusal(response, describe(error), self._reporter.stats())
        if self._answers.is_activated:
            self._answers.publish(answer_message(request, response))
        return response

    async def _ask(self, question: Question) -> Answer:
        session, state = self._reporter.session, self._reporter.state
        if session is None or state != "active":
            raise QuestionError(f"the node is {state}: activate it first.")
        pending = PendingQuestion(question)
        session.worker.ask(pending, self._parameters.value("query.max_waiting"))
        return await finished(self._node, pending.answer)

    async def _clear(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """Forget every frame."""
        try:
            session = self._reporter.session
            if session is None:
                raise KvStreamError(f"the node is {self._reporter.state}: there is no memory to clear.")
            frames = session.worker.stats.frames_remembered
            await finished(self._node, session.worker.call(lambda memory: memory.clear()))
            response.success, response.message = True, f"{frames} frames forgotten"
        except Exception as error:  # noqa: BLE001 - an exception here would end the executor
            self._log_unexpected("clear", error)
            response.success, response.message = False, describe(error)
        return response

    def _log_unexpected(self, what: str, error: Exception) -> None:
        if not isinstance(error, KvStreamError):
            self._node.get_logger().error(f"{what} failed: {describe(error)}")


async def finished(node: LifecycleNode, done: WorkerFuture[Any]) -> Any:
    """Wait for the worker in a handler: the executor goes on with other work, and is woken when the result is there."""
    arrived: Future = Future()
    wake: Callable[[], None] = node.executor.wake

    def hand_over(_: WorkerFuture[Any]) -> None:
        arrived.set_result(None)
        wake()

    done.add_done_callback(hand_over)
    await arrived
    return done.result()
