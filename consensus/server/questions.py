"""Questions to the core that one effect answers: linearizable reads, and transfers of leadership.

    ask ─▶ number it, put the event into the mailbox ─▶ … ─▶ the effect with that number ─▶ whoever asked

Who asks waits in a task of its own and may go away at any time; an answer that nobody waits for is let go. When the
server stops everybody is told.
"""

from collections.abc import Callable
from typing import assert_never

from consensus.core.effects import ReadReady, ReadRefusal, ReadRefused, TransferEnded
from consensus.core.events import ReadRequested, TransferLeadership
from consensus.core.model import Index, ServerId
from consensus.server.errors import NotLeaderError, ServerBusyError, ServerStoppedError
from consensus.server.mailbox import Awaited, Mailbox

QuestionAnswered = ReadReady | ReadRefused | TransferEnded
Answered = Callable[[QuestionAnswered | None], None]
"""Takes the answer, or None if the server stops."""


class Questions:
    """What was asked and is not answered, bounded."""

    def __init__(self, mailbox: Mailbox, questions_max: int) -> None:
        self._mailbox = mailbox
        self._questions_max = questions_max
        self._waiting: dict[int, Answered] = {}
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

    def ask_read(self, answered: Answered) -> int:
        """Like `read`, by a callback; returns a number for `forget`. Raises the last two of `refusals`."""
        self._last_number += 1
        # Kept by name: an answer that comes at once may ask the next question.
        number = self._last_number
        self._begin(number, ReadRequested(number), answered)
        return number

    def forget(self, number: int) -> None:
        """Nobody waits for this answer any more."""
        self._waiting.pop(number, None)

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
        answered = self._waiting.pop(number, None)
        if answered is not None:
            answered(effect)

    def end(self) -> None:
        """The server stops."""
        self._ended = True
        waiting, self._waiting = self._waiting, {}
        for answered in waiting.values():
            answered(None)

    async def _ask(self, number: int, question: ReadRequested | TransferLeadership) -> QuestionAnswered:
        awaited = Awaited[QuestionAnswered]()
        self._begin(number, question, awaited.give)
        try:
            answer = await awaited.wait()
        finally:
            self.forget(number)
        if answer is None:
            raise ServerStoppedError("the server has stopped")
        return answer

    def _begin(self, number: int, question: ReadRequested | TransferLeadership, answered: Answered) -> None:
        if self._ended:
            raise ServerStoppedError("the server has stopped")
        if len(self._waiting) >= self._questions_max:
            raise ServerBusyError(f"{len(self._waiting)} reads and transfers are under way")
        # Before it is asked: the answer may come at once.
        self._waiting[number] = answered
        if not self._mailbox.put(question):
            del self._waiting[number]
            raise ServerBusyError("too many events wait")
