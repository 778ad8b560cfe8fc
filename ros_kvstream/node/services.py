# SPDX-License-Identifier: Apache-2.0
"""~/query, ~/ask, ~/clear, ~/save and ~/load: handlers that await the worker without blocking the executor."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Future as WorkerFuture
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rclpy.action import ActionServer, CancelResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.lifecycle import LifecycleNode
from rclpy.task import Future
from std_srvs.srv import Trigger

from ros_kvstream import msg
from ros_kvstream.action import Ask
from ros_kvstream.errors import KvStreamError, QuestionError
from ros_kvstream.node.messages import answer_message, fill_answer, fill_refusal, question_from
from ros_kvstream.node.parameters import NodeParameters
from ros_kvstream.node.questions import PendingQuestion, Question
from ros_kvstream.node.reporting import Reporter
from ros_kvstream.node.session import NodeStatus, Session, memory_file
from ros_kvstream.node.worker import describe
from ros_kvstream.records import Answer
from ros_kvstream.srv import MemoryFile, Query

if TYPE_CHECKING:
    from ros_kvstream.stream.checkpoint import SavedMemory
    from ros_kvstream.stream.memory import VideoMemory


CANCELLED = "cancelled by the client"


class Services:
    """The node's services and its action. Handlers run in the executor thread and never raise."""

    def __init__(self, node: LifecycleNode, parameters: NodeParameters, status: NodeStatus, reporter: Reporter,
                 replaced: Callable[[VideoMemory], None]) -> None:
        """:param replaced: called in the worker's thread after all frames were removed, or others were loaded."""
        self._node = node
        self._replaced = replaced
        self._parameters = parameters
        self._status = status
        self._reporter = reporter
        self._open_goals: dict[bytes, PendingQuestion] = {}
        """Open questions of the action by goal id."""
        group = ReentrantCallbackGroup()  # several questions may wait at once
        self._answers = node.create_lifecycle_publisher(msg.Answer, "~/answers", 10)
        self._tokens = node.create_lifecycle_publisher(msg.AnswerToken, "~/answer_tokens", 100)
        node.create_service(Query, "~/query", self._query, callback_group=group)
        node.create_service(Trigger, "~/clear", self._clear, callback_group=group)
        node.create_service(MemoryFile, "~/save", self._save, callback_group=group)
        node.create_service(MemoryFile, "~/load", self._load, callback_group=group)
        self._action = ActionServer(node, Ask, "~/ask", self._execute, cancel_callback=self._cancel,
                                    callback_group=group)

    def destroy(self) -> None:
        """Destroy the action server, which the node does not destroy itself."""
        self._action.destroy()

    # -- questions --------------------------------------------------------------------------------------------------

    async def _query(self, request: Query.Request, response: Query.Response) -> Query.Response:
        """Answer one question, or state why it cannot be answered."""
        await self._respond(request, response, lambda question: self._ask(PendingQuestion(question)))
        return response

    async def _execute(self, goal: Any) -> Ask.Result:
        """Answer the question of one goal; publish its text as feedback while it is generated."""
        result, key = Ask.Result(), bytes(goal.goal_id.uuid)

        async def ask(question: Question) -> Answer:
            pending = self._open_goals[key] = PendingQuestion(
                question, on_token=lambda text, index: goal.publish_feedback(Ask.Feedback(text=text, index=index)))
            if goal.is_cancel_requested:  # the cancel request was faster than this coroutine
                pending.cancel(CANCELLED)
            return await self._ask(pending)

        error = await self._respond(goal.request, result, ask)
        self._open_goals.pop(key, None)
        if error is None:
            goal.succeed()
        elif goal.is_cancel_requested:
            goal.canceled()
        else:
            goal.abort()
        return result

    def _cancel(self, goal: Any) -> CancelResponse:
        """Stop generation at the next token; refused once there is an answer."""
        pending = self._open_goals.get(bytes(goal.goal_id.uuid))
        if pending is not None:
            if pending.answer.done():
                return CancelResponse.REJECT
            pending.cancel(CANCELLED)
            if self._status.session is not None:
                self._status.session.worker.questions.expire()
        return CancelResponse.ACCEPT

    async def _respond(self, request: Any, response: Any,
                       ask: Callable[[Question], Awaitable[Answer]]) -> Exception | None:
        """Fill a response of the service or the action, publish it on ~/answers, and return the error, if any."""
        failure: Exception | None = None
        try:
            timeout, least = map(self._parameters.value, ("query.timeout_s", "query.min_confidence"))
            answer = await ask(question_from(request, timeout, least))
            self._reporter.answered(answer)
            fill_answer(response, answer, self._reporter.stats(self._status))
        except Exception as error:  # noqa: BLE001 - an exception here would end the executor
            failure = error
            fill_refusal(response, self._reason("query", error), self._reporter.stats(self._status))
        if self._answers.is_activated:
            self._answers.publish(answer_message(request, response))
        return failure

    async def _ask(self, pending: PendingQuestion) -> Answer:
        session, state = self._status.session, self._status.state
        if session is None or state != "active":
            raise QuestionError(f"the node is {state}: activate it first.")
        session.worker.ask(pending, self._parameters.value("query.max_waiting"))
        return await finished(self._node, pending.answer)

    def token(self, pending: PendingQuestion, text: str, index: int) -> None:
        """Publish a piece of an answer on ~/answer_tokens. Runs in the worker's thread."""
        if self._tokens.is_activated:
            message = msg.AnswerToken(question_id=pending.number, conversation_id=pending.question.conversation_id,
                                      index=index, text=text)
            message.header.stamp = self._node.get_clock().now().to_msg()
            self._tokens.publish(message)

    # -- the whole memory -------------------------------------------------------------------------------------------

    async def _clear(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """Evict every frame."""
        try:
            worker = self._session("clear").worker
            frames = worker.stats.frames_remembered
            await finished(self._node, worker.call(self._clear_memory))
            response.success, response.message = True, f"{frames} frames evicted"
        except Exception as error:  # noqa: BLE001 - an exception here would end the executor
            response.success, response.message = False, self._reason("clear", error)
        return response

    def _clear_memory(self, memory: VideoMemory) -> None:
        """Runs in the worker's thread."""
        memory.clear()
        if (poses := self._session("clear").poses) is not None:
            poses.cleared()
        self._replaced(memory)

    async def _save(self, request: MemoryFile.Request, response: MemoryFile.Response) -> MemoryFile.Response:
        """Write the memory to a file."""
        return await self._transfer("save", request, response, lambda memory, path: memory.save(path))

    async def _load(self, request: MemoryFile.Request, response: MemoryFile.Response) -> MemoryFile.Response:
        """Replace the memory by a saved one."""
        return await self._transfer("load", request, response, self._load_memory)

    def _load_memory(self, memory: VideoMemory, path: Path) -> SavedMemory:
        """Runs in the worker's thread."""
        saved = memory.load(path)
        if (poses := self._session("load").poses) is not None:
            poses.replaced(memory)
        self._replaced(memory)
        return saved

    async def _transfer(self, name: str, request: MemoryFile.Request, response: MemoryFile.Response,
                        transfer: Callable[[VideoMemory, Path], SavedMemory]) -> MemoryFile.Response:
        try:
            session = self._session(name)
            path = memory_file(self._parameters.value("memory.directory"), request.name)
            saved = await finished(self._node, session.worker.call(lambda memory: transfer(memory, path)))
            response.success, response.bytes, response.frames = True, saved.bytes, saved.frames
        except Exception as error:  # noqa: BLE001 - an exception here would end the executor
            response.success, response.message = False, self._reason(name, error)
        return response

    def _session(self, service: str) -> Session:
        if self._status.session is None:
            raise KvStreamError(f"the node is {self._status.state}: there is no memory to {service}.")
        return self._status.session

    def _reason(self, service: str, error: Exception) -> str:
        """Describe an error for the client; log it when it is unexpected."""
        if not isinstance(error, KvStreamError):
            self._node.get_logger().error(f"{service} failed: {describe(error)}")
        return describe(error)


async def finished(node: LifecycleNode, done: WorkerFuture[Any]) -> Any:
    """Await a future of another thread in a handler; the executor runs other callbacks in the meantime."""
    arrived: Future = Future()
    wake: Callable[[], None] = node.executor.wake

    def wake_up(_: WorkerFuture[Any]) -> None:
        arrived.set_result(None)
        wake()

    done.add_done_callback(wake_up)
    await arrived
    return done.result()
