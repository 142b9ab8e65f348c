"""Random calls at a server: each caller gets exactly one timely reply, and turns are never nested.

The simulator has cores, executor and storage, but neither mailbox nor turns. Therefore, at random moments of
simulated time, clients here submit, read, request votes, cancel, and repeat calls in their reply callbacks. The server
takes snapshots at the same time. A lost wake-up causes a late reply: no other event wakes the owner of a single leader
for hundreds of milliseconds.
"""

from collections import Counter
from collections.abc import Callable
from random import Random

import trio
import trio.testing
from msgspec.structs import replace

from consensus.core.effects import Outcome, Role
from consensus.server.errors import ServerBusyError
from consensus.server.interfaces import next_call
from consensus.server.options import ServerOptions
from consensus.server.server import ConsensusServer
from tests.effort import over_seeds
from tests.node.memory_server import until
from tests.node.test_server_turns import OUT_OF_DATE, TWO, make_server

DISK_S = 0.016
"""Duration of eight disk jobs: previous batch, snapshot chunk, own batch and another chunk, each counted twice."""
REPEATS_MAX = 3
"""Maximum number of immediate repetitions by one reply callback."""


class Crowd:
    """Clients of one server, and their open calls."""

    def __init__(self, server: ConsensusServer, random: Random) -> None:
        self.server = server
        self.random = random
        self.outcomes: Counter[str] = Counter()
        self.open_calls: dict[int, float] = {}
        self.latest_s = 0.0
        self._last = 0
        self._answering = False

    def act(self, depth: int = 0) -> None:
        """Make one call; its callback may make the next one immediately."""
        self._last += 1
        number = self._last
        self.open_calls[number] = trio.current_time()

        def on_reply(answer: object) -> None:
            assert number in self.open_calls, "two replies, or a reply after the cancellation"
            self.latest_s = max(self.latest_s, trio.current_time() - self.open_calls.pop(number))
            self.outcomes[type(answer).__name__] += 1
            if depth < REPEATS_MAX and self.random.random() < 0.4:
                self.act(depth + 1)

        cancel = self._begin(on_reply)
        if number in self.open_calls and self.random.random() < 0.1:
            cancel()
            del self.open_calls[number]

    def _begin(self, on_reply: Callable[[object], None]) -> Callable[[], None]:
        server, kind = self.server, self.random.random()
        if kind < 0.6:
            size = self.random.choice((1, 100, 5_000))
            return server.submit((bytes(size),) * self.random.choice((1, 1, 3)), on_reply).abandon

        def on_reply_in_turn(answer: object) -> None:
            assert not self._answering, "nested turns"
            self._answering = True
            on_reply(answer)
            self._answering = False

        try:
            if kind < 0.8:
                read = server.request_read(on_reply_in_turn)
                return lambda: server.forget(read)
            request = replace(OUT_OF_DATE, correlation=next_call())
            server.ask(TWO, request, on_reply_in_turn)
        except ServerBusyError as error:
            on_reply(error)
            return lambda: None
        return lambda: server.forget(request.correlation)


@over_seeds(60, quick=3)
async def test_random_calls_get_one_timely_reply(
    seed: int, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    random = Random(seed)
    options = ServerOptions(
        batch_commands=random.choice((2, 8, 512)),
        linger_in_flight_ms=random.choice((0, 1, 20)),
        linger_idle_ms=random.choice((0, 4, 40)),
        max_proposals=random.choice((8, 4096)),
        max_requests=random.choice((4, 1024)),
        snapshot_log_bytes=random.choice((20_000, 64 * 1024 * 1024)),
        snapshot_check_ms=50,
        retain_bytes=0,
    )
    soon_s = options.linger_idle_ms / 1000 + DISK_S
    server, _ = make_server(options)
    crowd = Crowd(server, random)
    await nursery.start(server.run)
    await until(lambda: server.role.role is Role.LEADER)
    for _ in range(150):
        for _ in range(random.choice((1, 1, 2, 20))):
            crowd.act()
        await trio.sleep(random.choice((0, 0, 0.0005, 0.003, 0.02, 0.2)))
    # The last reply may come at the end of its time, and its caller may repeat the call several times.
    await trio.sleep(soon_s * (1 + REPEATS_MAX))
    # A lost wake-up would leave a call open, and a late one would exceed the limit.
    assert not crowd.open_calls
    assert crowd.latest_s <= soon_s
    assert server.describe().proposals_in_flight == server.describe().requests_in_flight == 0
    assert crowd.outcomes["ProposalResolved"] > 100
    assert (await server.propose((b"as good as ever",))).outcome is Outcome.COMMITTED
