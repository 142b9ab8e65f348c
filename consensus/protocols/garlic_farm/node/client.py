"""A client of the cluster: finds the leader, submits entries, and reports how each submission ended.

    submit ─▶ any server ─▶ accepted: committed
                          │ another destination: that server leads, try it
                          │ unknown destination, or no connection: try another server, a little later
                          │ its own destination: the leader is busy, try again later; with an index: the session
                          │   has expired, and the table of sessions refuses repetitions permanently
                          │ closed without a reply: unknown, unless the request was never sent

`read_index` works the same way. Many submissions share one connection per server, in a pipeline. A submission with an
unknown outcome may have been committed, so the client repeats it only if the caller permits a second copy.

`read_barrier_anywhere` makes a read linearizable at any server. A server that does not lead requests the leader's index
and waits until it has applied that index. The leader replies after a majority has confirmed its leadership. Everything
acknowledged before the read is at or below the index.
"""

from collections.abc import Sequence
from random import Random

import trio
from msgspec import Struct

from consensus.core.effects import Outcome
from consensus.core.model import COMMAND, Entry, Index, LogId
from consensus.core.slow_link import SLOWEST_LINK_BYTES_PER_S
from consensus.net.backoff import Backoff
from consensus.net.transfer_time import time_for
from consensus.protocols.garlic_farm.node.client_connection import ClientConnection, Lost
from consensus.protocols.garlic_farm.node.dialer import Dialer
from consensus.protocols.garlic_farm.node.links import Resolve
from consensus.protocols.garlic_farm.wire import messages as wire
from consensus.protocols.garlic_farm.wire.codec import encode_request
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.upgrade import Extension
from consensus.server.callbacks import run_task
from consensus.server.errors import NotLeaderError, ServerBusyError
from consensus.server.server import ConsensusServer
from consensus.server.task_owner import TaskOwner
from consensus.sessions.client import Submission

ASK_PATIENCE_S = 2.0
"""Time limit of a query to other servers; after it, this server checks again if it leads."""


class ClientOptions(Struct, frozen=True):
    """Times and bounds of a client."""

    reply_timeout_s: float = 15.0
    backoff_first_s: float = 0.02
    backoff_longest_s: float = 0.5
    in_flight_max: int = 256
    queue_max: int = 4096


class GarlicFarmClient(TaskOwner):
    """Submits entries to the leader. `run` must be running."""

    def __init__(
        self,
        dialer: Dialer,
        resolve: Resolve,
        servers: Sequence[int],
        *,
        random: Random,
        options: ClientOptions | None = None,
    ) -> None:
        if not servers:
            raise ValueError("a client needs at least one server")
        self._dialer = dialer
        self._resolve = resolve
        self._servers = tuple(servers)
        self._random = random
        self._options = options or ClientOptions()
        self._connections: dict[int, ClientConnection] = {}
        self._extensions: dict[int, frozenset[Extension]] = {}
        self._locks: dict[int, trio.Lock] = {}
        self._preferred = self._random.choice(self._servers)

    def servers_are(self, servers: Sequence[int]) -> None:
        """Use these servers from now on. An empty list is ignored."""
        if servers:
            self._servers = tuple(servers)
            if self._preferred not in self._servers:
                self._preferred = self._random.choice(self._servers)

    def leader_is(self, server: int) -> None:
        """Send the next requests to this server: a stopped process of the former leader does not answer."""
        if server in self._servers:
            self._preferred = server

    async def submit(
        self, commands: Sequence[bytes], *, timeout_s: float = 10.0, repeat_unknown: bool = False
    ) -> Submission:
        """Append `commands`, in order, in one request; without any, only find the leader."""
        data = encode_request(wire.ClientRequest(entries=tuple([Entry(0, COMMAND, command) for command in commands])))
        return await self._submit(data, None, timeout_s, repeat_unknown=repeat_unknown)

    async def read_index(self, *, timeout_s: float = 10.0) -> Submission:
        """Return a committed position: a state applied up to it includes everything acknowledged before this call.

        The call does not write an entry, and queries only servers with the extension `read-index`.
        """
        data = encode_request(wire.ReadIndexRequest())
        return await self._submit(data, Extension.READ_INDEX, timeout_s, repeat_unknown=True)

    async def call(self, server: int, request: wire.Request) -> wire.Reply | Lost:
        """Send one request to one server and return its reply. Raises `GarlicFarmError` if it cannot be reached."""
        connection = await self._connection_to(server)
        return await connection.call(encode_request(request))

    async def _submit(
        self, data: bytes, needed: Extension | None, timeout_s: float, *, repeat_unknown: bool
    ) -> Submission:
        attempt, backoff = _Attempt(), None
        due_s = trio.current_time() + timeout_s + time_for(len(data))
        while trio.current_time() < due_s and not attempt.settled(repeat_unknown=repeat_unknown):
            if attempt.pause:
                backoff = backoff or Backoff(
                    self._options.backoff_first_s, self._options.backoff_longest_s, self._random
                )
                await trio.sleep_until(min(trio.current_time() + backoff.next_s(), due_s))
                attempt.pause = False
            else:
                await self._try(data, needed, attempt, due_s)
        return attempt.submission()

    async def _try(self, data: bytes, needed: Extension | None, attempt: "_Attempt", due_s: float) -> None:
        server = attempt.target = self._preferred
        connection = self._connections.get(server)
        try:
            if connection is None or not connection.open:
                connection = None
                with trio.move_on_at(due_s):
                    connection = await self._connection_to(server)
                if connection is None:
                    return
        except GarlicFarmError as error:
            attempt.failed(f"server {server}: {error}")
            self._choose_another(server)
            return
        if needed is not None and needed not in self._extensions[server]:
            attempt.failed(f"server {server} does not know the extension {needed.value}")
            self._choose_another(server)
            return
        answer = await connection.call(data, due_s)
        attempt.take_reply(answer)
        if attempt.leader is not None and attempt.leader != server:
            self._preferred = attempt.leader
        elif attempt.outcome not in (Outcome.COMMITTED, Outcome.BUSY) and answer is not Lost.LATE:
            self._choose_another(server)

    def _choose_another(self, failed: int) -> None:
        if self._preferred == failed:
            others = [server for server in self._servers if server != failed]
            self._preferred = self._random.choice(others or [failed])

    async def _connection_to(self, server: int) -> ClientConnection:
        async with self._locks.setdefault(server, trio.Lock()):
            connection = self._connections.get(server)
            if connection is not None and connection.open:
                return connection
            address = self._resolve(server)
            if address is None or self._nursery is None:
                raise GarlicFarmError(Fault.UNREACHABLE, f"the address of server {server} is not known")
            dialed = await self._dialer.dial(address, server)
            connection = ClientConnection(
                dialed.stream,
                dialed.trailing,
                reply_timeout_s=self._options.reply_timeout_s,
                window=self._options.in_flight_max,
                queue_max=self._options.queue_max,
                least_bytes_per_s=SLOWEST_LINK_BYTES_PER_S,
            )
            if not self._start(connection):
                await trio.aclose_forcefully(dialed.stream)
                raise GarlicFarmError(Fault.UNREACHABLE, f"this client was stopped while it connected to {address}")
            self._connections[server], self._extensions[server] = connection, dialed.extensions
            return connection

    def _start(self, connection: ClientConnection) -> bool:
        """Run the connection in a task; return False if `run` has ended during the dial."""
        if self._nursery is None:
            return False
        self._nursery.start_soon(run_task, _carry, connection)
        return True


class _Attempt(Struct):
    outcome: Outcome | None = None
    position: LogId | None = None
    leader: int | None = None
    reason: str = "the request was not sent to a server yet"
    target: int | None = None
    pause: bool = False
    doubtful: bool = False
    """True after an attempt with an unknown outcome: its copy may be committed even if later attempts are refused."""
    expired: bool = False
    redirect_term: int = -1
    """The highest term of a redirect."""

    def settled(self, *, repeat_unknown: bool) -> bool:
        if self.outcome is Outcome.UNKNOWN:
            return self.expired or not repeat_unknown
        return self.outcome is Outcome.COMMITTED

    def failed(self, reason: str, outcome: Outcome = Outcome.NOT_LEADER) -> None:
        self.outcome, self.leader, self.reason, self.pause = outcome, None, reason, True
        self.doubtful |= outcome is Outcome.UNKNOWN

    def take_reply(self, answer: wire.Reply | Lost) -> None:
        match answer:
            case wire.Reply() if answer.accepted:
                self.outcome, self.leader, self.reason = Outcome.COMMITTED, answer.source, ""
                self.position = LogId(max(0, answer.next_index - 1), answer.term)
            case Lost.QUEUE_FULL:
                self.failed(f"too many requests wait for server {self.target}", Outcome.BUSY)
            case Lost.UNSENT:
                self.failed(f"the connection to server {self.target} ended before the request was sent")
            case Lost.LATE:
                self.outcome, self.reason = Outcome.UNKNOWN, f"server {self.target} has not answered in time"
            case Lost.UNANSWERED:
                self.failed(
                    f"server {self.target} closed the connection without a reply: the entry may be committed or not",
                    Outcome.UNKNOWN,
                )
            case wire.Reply() if answer.destination == answer.source and answer.next_index > 0:
                self.failed("the session has expired: the command may be executed or not", Outcome.UNKNOWN)
                self.expired = True
            case wire.Reply() if answer.destination == answer.source:
                self.failed(f"server {answer.source} leads and is busy", Outcome.BUSY)
            case wire.Reply() if answer.destination > 0:
                self.failed(f"server {answer.source} names server {answer.destination} as the leader")
                self.leader = answer.destination
                # The first redirect of a term is followed immediately. Later ones wait: two servers may redirect a
                # client to each other.
                self.pause = answer.term <= self.redirect_term
                self.redirect_term = max(self.redirect_term, answer.term)
            case _:
                self.failed(f"server {answer.source} does not know a leader")

    def submission(self) -> Submission:
        if self.expired:
            return Submission(Outcome.UNKNOWN, None, self.leader, self.reason, expired=True)
        if self.doubtful and self.outcome is not Outcome.COMMITTED:
            return Submission(Outcome.UNKNOWN, None, self.leader, f"a copy may be committed; last: {self.reason}")
        return Submission(self.outcome or Outcome.NOT_LEADER, self.position, self.leader, self.reason)


async def _carry(connection: ClientConnection) -> None:
    try:
        await connection.run()
    except GarlicFarmError:
        return  # every submission on this connection has its reply


async def read_barrier_anywhere(
    server: ConsensusServer, client: GarlicFarmClient | None, *, timeout_s: float = 10.0
) -> Index:
    """Wait until `server` has applied everything acknowledged before the call; return the applied index.

    `client` queries the other servers and must be running; None without other servers. Raises `NotLeaderError` if no
    leader replied in time. Raises `ServerBusyError` if a server is busy or applies too slowly, or `ServerStoppedError`.
    """
    deadline_s = trio.current_time() + timeout_s
    refusal: NotLeaderError | ServerBusyError = NotLeaderError(None)
    with trio.move_on_at(deadline_s):
        while True:
            try:
                return await server.read_barrier()
            except NotLeaderError as error:
                refusal = error
            if client is None:
                raise refusal
            left_s = max(0.0, deadline_s - trio.current_time())
            answer = await client.read_index(timeout_s=min(ASK_PATIENCE_S, left_s))
            if answer.position is not None:
                refusal = ServerBusyError("this server has not applied the leader's commit index yet")
                return await server.wait_applied(answer.position.index)
    raise refusal
