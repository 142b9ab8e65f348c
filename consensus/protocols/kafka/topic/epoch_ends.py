"""The ends of terms in a replicated log, for consumers that check for a truncated log.

    terms    1 1 1 | 2 2 | 4 4 4 … final         end of 1: 3   of 2 and 3: 5   of 4: unknown
    offsets  0 1 2   3 4   5 6 7

A *final* entry is committed and, in a topic that ends at the applied index, also applied. A term ends at the first
final entry of a later term. The terms of the compacted part are unknown, so a term that ended there counts as ended at
the log's start.

Without a final entry of a later term, a server does not know the end, since it may lag. So it does not report records
as truncated. A term later than the server's own may be unknown to this server alone, so the server waits for a read
barrier. If the term is still unknown then, it belongs to another log, such as the log of a farm before its recovery.

This is a separate module because the topic of a quorum's log and the topic of a farm's log both use it.
"""

from collections.abc import Awaitable, Callable

from consensus.core.model import Index, LogId, Term
from consensus.protocols.kafka.topic.served_topic import MAX_OFFSET
from consensus.server.errors import NotLeaderError, ServerBusyError
from consensus.server.server import ConsensusServer


async def end_of_term(
    server: ConsensusServer, term: Term, final: Callable[[], Index], barrier: Callable[[], Awaitable[Index]]
) -> int | None:
    """Return the offset after the last final entry of `term` or of an earlier one; see `ServedTopic.epoch_end`.

    Raises `ServerBusyError` or `ServerStoppedError`.
    """
    for is_last in (False, True):
        last = final()
        agreed = server.divergence(LogId(last, term))
        if agreed.index < last:
            return agreed.index
        if term <= server.role.term:
            return MAX_OFFSET
        if not is_last:
            try:
                await barrier()
            except NotLeaderError as error:
                raise ServerBusyError("no leader is known, so the newest term is not known either") from error
    return None
