"""Those who wait for a change of the configuration, between the callers' tasks and the owner of the core.

The core takes one change at a time and refuses the others, so nobody queues here: each request goes to the core at once
and its caller waits for the answer. A caller that goes away leaves its change to run its course.
"""

from consensus.core.effects import ChangeOutcome, ChangeRefusal, ConfigurationResolved
from consensus.core.events import ChangeConfiguration
from consensus.core.model import Configuration
from consensus.server.mailbox import Awaited, Mailbox

_MAX_WAITING = 16


class Changes:
    """Requests to change the configuration that the core has not answered."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._waiting: dict[int, Awaited[ConfigurationResolved]] = {}
        self._last_id = 0
        self._ended = False

    async def ask(self, target: Configuration) -> ConfigurationResolved:
        """Hand the request to the core and wait for its answer."""
        if self._ended:
            return ConfigurationResolved(0, ChangeOutcome.REFUSED, ChangeRefusal.NOT_LEADER)
        self._last_id += 1
        change_id = self._last_id
        if len(self._waiting) >= _MAX_WAITING:
            return ConfigurationResolved(change_id, ChangeOutcome.REFUSED, ChangeRefusal.BUSY)
        # Before it is asked: the answer may come at once.
        awaited = self._waiting[change_id] = Awaited[ConfigurationResolved]()
        try:
            if not self._mailbox.put(ChangeConfiguration(change_id, target)):
                return ConfigurationResolved(change_id, ChangeOutcome.REFUSED, ChangeRefusal.BUSY)
            answer = await awaited.wait()
        finally:
            del self._waiting[change_id]
        return answer or ConfigurationResolved(change_id, ChangeOutcome.UNKNOWN)

    def resolve(self, answer: ConfigurationResolved) -> None:
        """The core has answered."""
        awaited = self._waiting.get(answer.change_id)
        if awaited is not None:
            awaited.give(answer)

    def end(self) -> None:
        """The server stops: what is under way may be in the log or not."""
        self._ended = True
        for awaited in self._waiting.values():
            awaited.give(None)
