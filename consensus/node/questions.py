"""Questions to the core that one effect answers: linearizable reads, and transfers of leadership.

    ask ─▶ number it, put the event into the inbox ─▶ … ─▶ the effect with that number ─▶ whoever asked

Who asks waits in a task of its own and may go away at any time; an answer that nobody waits for is let go. When the
server stops everybody is told.
"""

from typing import assert_never

from consensus.core.effects import ReadReady, ReadRefusal, ReadRefused, TransferEnded
from consensus.core.events import ReadRequested, TransferLeadership
from consensus.core.position import Index, ServerId
from consensus.node.inbox import Awaited, Inbox
from consensus.node.refusals import NotLeaderError, ServerBusyError, ServerStoppedError

QuestionAnswered = ReadReady | ReadRefused | TransferEnded


class Questions:
    """What was asked and is not answered, bounded."""

    def __init__(self, inbox: Inbox, questions_max: int) -> None:
        self._inbox = inbox
        self._questions_max = questions_max
        self._waiting: dict[int, Awaited[QuestionAnswered]] = {}
        self._last_number = 0
        self._ended = False

    async def read(self) -> Index:
        """The index that the state machine must reach; raises what `refusals` lists."""
        self._last_number += 1
        answer = await self._ask(self._last_number, ReadRequested(self._last_number))
        match answer:
            case ReadReady(_, index):
                return index
            case ReadRefused(_, ReadRefusal.NOT_LEADER, leader):
                raise NotLeaderError(leader)
            case ReadRefused():
                raise ServerBusyError("too many reads wait for a majority")
            case TransferEnded():
                raise RuntimeError("a read was answered as a transfer")
            case _:
                assert_never(answer)

    async def transfer(self, target: ServerId | None) -> TransferEnded:
        """What came of the transfer; raises `ServerBusyError` or `ServerStoppedError`."""
        self._last_number += 1
        answer = await self._ask(self._last_number, TransferLeadership(self._last_number, target))
        if not isinstance(answer, TransferEnded):
            raise RuntimeError("a transfer was answered as a read")  # noqa: TRY004 - a bug of ours, no wrong argument
        return answer

    def answer(self, effect: QuestionAnswered) -> None:
        """Wake whoever asked, unless it has gone."""
        number = effect.transfer_id if isinstance(effect, TransferEnded) else effect.read_id
        awaited = self._waiting.get(number)
        if awaited is not None:
            awaited.give(effect)

    def end(self) -> None:
        """The server stops."""
        self._ended = True
        for awaited in self._waiting.values():
            awaited.give(None)

    async def _ask(self, number: int, question: ReadRequested | TransferLeadership) -> QuestionAnswered:
        if self._ended:
            raise ServerStoppedError("the server has stopped")
        if len(self._waiting) >= self._questions_max or not self._inbox.put(question):
            raise ServerBusyError(f"{len(self._waiting)} reads and transfers are under way")
        awaited = self._waiting[number] = Awaited[QuestionAnswered]()
        try:
            answer = await awaited.wait()
        finally:
            del self._waiting[number]
        if answer is None:
            raise ServerStoppedError("the server has stopped")
        return answer
