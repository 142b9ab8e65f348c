"""Linearizable reads from any server: whoever does not lead asks the leader for the index, and waits for it here.

    leads here ──▶ read_barrier
    else ────────▶ read index of the leader, over the wire ──▶ wait until it is applied here

The index is asked for after the read began, and the leader gives it only once a majority has confirmed that it leads.
So everything acknowledged before the read lies at or below it, and a follower that has applied so far shows it as well.
The leader carries no data for that: a few bytes, however large the answer is.
"""

import trio

from consensus.core.model import Index
from consensus.protocols.garlic_farm.node.client import GarlicFarmClient
from consensus.server.errors import NotLeaderError, ServerBusyError
from consensus.server.server import ConsensusServer

ASK_PATIENCE_S = 2.0
"""How long others are asked before it is looked at whether we lead ourselves by now."""


async def read_barrier_anywhere(
    server: ConsensusServer, client: GarlicFarmClient | None, *, patience_s: float = 10.0
) -> Index:
    """Wait until `server` has applied everything acknowledged before the call; returns the applied index.

    `client` asks the other servers and must be running; None: there are no others. Raises `NotLeaderError` if no leader
    answered in time, `ServerBusyError`, or `ServerStoppedError`.
    """
    deadline_s = trio.current_time() + patience_s
    refusal: NotLeaderError | ServerBusyError = NotLeaderError(None)
    with trio.move_on_at(deadline_s):
        while True:
            try:
                return await server.read_barrier()
            except NotLeaderError as error:
                refusal = error
            if client is None:
                raise refusal
            left_s = deadline_s - trio.current_time()
            answer = await client.read_index(patience_s=min(ASK_PATIENCE_S, left_s))
            if answer.position is not None:
                refusal = ServerBusyError("this server lags behind what the leader has committed")
                return await server.wait_applied(answer.position.index)
    raise refusal
