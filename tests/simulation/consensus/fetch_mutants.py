"""Planted bugs of replication by fetching; the simulator must find each of them."""

from typing import Any

from consensus.core.log import Log
from consensus.core.messages import Fetch
from consensus.core.model import Index, LogId, ServerId
from consensus.core.replica import Outbox
from consensus.core.replication import fetch_receiver
from consensus.core.replication.fetch_schedule import FetchSchedule, PendingFetch
from consensus.core.replication.progress import ProgressTracker
from tests.simulation.consensus.mutants import Mutant
from tests.simulation.consensus.profile import Kind

_send = Outbox.send


def _answers_anything(self: FetchSchedule, sender: ServerId, _correlation: int) -> PendingFetch:
    replica = self._replica
    self._waiting = None
    return PendingFetch(sender, replica.term, replica.log.last, replica.now, replica.now)


def _send_fetches_at_once(self: Outbox, recipient: Any, message: Any, after: int = 0) -> None:
    _send(self, recipient, message, 0 if isinstance(message, Fetch) else after)


def _any_end_is_right(_last: LogId, _pending: PendingFetch) -> bool:
    return True


def _never(_self: FetchSchedule) -> bool:
    return False


def _before_the_whole_term(self: Log, other: LogId) -> LogId:
    index = min(other.index, self.last_index)
    if index <= self.start.index:
        return self.start
    index = self.first_of_term_at(index) - 1
    return LogId(index, self.term_at(index) or 0)


def _any_index_commits(_self: ProgressTracker, index: Index) -> bool:
    return index > 0


def _last_index(self: ProgressTracker) -> Index:
    return self._replica.log.last_index


FETCH_MUTANTS = (
    Mutant(
        "fetch-without-correlation",
        "any fetch reply counts as the answer to the next fetch, so a late one cuts newer entries",
        ((FetchSchedule, "take_reply_to", _answers_anything),),
        "fetch",
    ),
    Mutant(
        "fetch-reply-for-another-end",
        "a fetch reply is accepted although the log has grown since its request",
        ((fetch_receiver, "still_answers", _any_end_is_right),),
        "fetch",
    ),
    Mutant(
        "fetch-before-durable",
        "a follower fetches from the end of its log, and so acknowledges it, before it is durable",
        ((Outbox, "send", _send_fetches_at_once), (FetchSchedule, "_is_writing", property(_never))),
        "fetch",
    ),
    Mutant(
        "divergence-by-whole-terms",
        "diverging logs are cut by a whole term, even common entries; a server that committed them refuses permanently",
        ((Log, "divergence", _before_the_whole_term),),
        "fetch",
        stalls=True,
    ),
    Mutant(
        "fetch-old-term-by-counting",
        "entries of older terms are committed by counting fetches",
        ((ProgressTracker, "_may_commit", _any_index_commits),),
        "fetch",
        kind=Kind.FIGURE_8,
    ),
    Mutant(
        "fetch-leader-counts-itself-early",
        "a leader of fetching followers counts its own entries before they are durable",
        ((ProgressTracker, "_own_match", _last_index),),
        "fetch",
    ),
)
