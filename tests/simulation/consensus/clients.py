"""Concurrent clients, each sequential; the judge checks their observations after the history.

A client sends each call to one server after another until it receives an answer or its timeout ends. All attempts of a
write have the same request id, so it must be executed at most once. Answers get lost like requests; a server that is
down refuses immediately. Clients reach every server, including isolated ones. An isolated server that still considers
itself leader therefore also receives requests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from consensus.core.effects import Outcome, ProposalResolved, ReadReady, ReadRefused
from consensus.core.events import Proposed, ReadRequested
from consensus.core.features import Features
from consensus.core.model import Index, ServerId
from consensus.protocols.zmq_raft.wire.request_ids import RequestIds
from consensus.sessions.dedup_state_machine import request_entry
from consensus.sessions.table import RequestId
from tests.simulation.consensus.checker import Checker, ViolationError
from tests.simulation.consensus.kafka_node import KafkaCommands
from tests.simulation.consensus.linearizability import Operation, Verdict, judge
from tests.simulation.consensus.profile import Profile
from tests.simulation.consensus.stage import Stage
from tests.simulation.consensus.state import StateMachine, decode_result, write_command

_WAY_MS = 3


@dataclass(slots=True)
class Call:
    """One pending operation."""

    key: int
    value: int | None
    """Value to write; None: a read."""
    request: RequestId | None
    called: int
    deadline_ms: int
    attempts: int = 0


@dataclass(slots=True)
class Client:
    """One client with its session."""

    number: int
    session_start: Index = 0
    seen: Index = 0
    """The highest index in any answer to this client."""
    sequence: int = 0
    leader: ServerId | None = None
    call: Call | None = None


class Clients:
    """All clients of one history."""

    def __init__(self, random: Random, profile: Profile, features: Features, stage: Stage, checker: Checker) -> None:
        self._head_bytes = features.command_head_bytes
        kafka = profile.kafka
        self._kafka = None if kafka is None else KafkaCommands(random, kafka.batch_records)
        self._request_ids = RequestIds(b"sim", 0, 0)
        self._random = random
        self._profile = profile
        self._stage = stage
        self._checker = checker
        self._waiting: dict[int, tuple[Client, Call]] = {}
        self._clients = [Client(number) for number in range(1, profile.clients + 1)]
        self._moment = 0
        self._numbers = 0
        self._operations: list[Operation] = []
        self.calls = 0
        self.writes_answered = 0
        self.reads_answered = 0
        self.keys_judged = 0

    def begin(self) -> None:
        """Start all clients at about the same time."""
        for client in self._clients:
            self._stage.after(self._random.randrange(100), lambda client=client: self._call(client))  # type: ignore[misc]

    def next_number(self) -> int:
        """Return a unique number for a proposal, a read or another request."""
        self._numbers += 1
        return self._numbers

    def headed(self, command: bytes) -> bytes:
        """Return a command as the protocol's log stores it, with a unique id if the protocol has one."""
        if self._kafka is not None:
            return self._kafka.batch((command,), self._stage.now)[0]
        return self.next_head() + command

    def next_head(self) -> bytes:
        """Return the head of the next configuration change or submission; empty if the protocol does not have heads."""
        if self._kafka is not None:
            return self._kafka.head(self._stage.now)
        return self._request_ids.next(self._stage.now // 1_000) if self._head_bytes else b""

    def resolved(self, state: StateMachine, resolve: ProposalResolved) -> None:
        """Handle the outcome of a proposal; its result is known when the server's state machine has applied it."""
        client, call = self._waiting.pop(resolve.proposal_id, (None, None))
        if client is None or call is None:
            return
        if resolve.outcome is Outcome.COMMITTED and resolve.position is not None:
            index = resolve.position.index
            state.when_applied(index, lambda: self._executed(client, call, state, index))
        else:
            self._deliver_answer(lambda: self._refused(client, call, resolve.leader))

    def read_ready(self, state: StateMachine, ready: ReadReady) -> None:
        """Answer a read when the server's state machine has applied the index."""
        client, call = self._waiting.pop(ready.read_id)

        def answer() -> None:
            value = state.value_of(call.key)
            self._deliver_answer(lambda: self._answered(client, call, value, ready.index))

        state.when_applied(ready.index, answer)

    def read_refused(self, refused: ReadRefused) -> None:
        client, call = self._waiting.pop(refused.read_id)
        self._deliver_answer(lambda: self._refused(client, call, refused.leader))

    def check(self) -> None:
        """Judge the finished history."""
        open_calls = [client.call for client in self._clients if client.call is not None]
        history = [
            *self._operations,
            *(Operation(call.key, call.value, None, call.called, None) for call in open_calls),
        ]
        judgment = judge(history)
        if judgment.verdict is Verdict.CONTRADICTORY:
            operations = sorted(
                (operation for operation in history if operation.key == judgment.key),
                key=lambda operation: operation.called,
            )
            raise ViolationError(
                f"linearizability: no order explains what clients saw of key {judgment.key}: {operations}"
            )
        self.keys_judged = len({operation.key for operation in history})

    def _call(self, client: Client) -> None:
        random, profile = self._random, self._profile
        self.calls += 1
        value = request = None
        if random.random() >= profile.reads:
            value = self.next_number()
            client.sequence += 1
            request = RequestId(f"client {client.number}", client.session_start, client.sequence)
        timeout_ms = profile.timeout_ms if self._stage.trouble else 10_000
        client.call = call = Call(
            random.randrange(profile.keys), value, request, self._next_moment(), self._stage.now + timeout_ms
        )
        self._attempt(client, call)

    def _attempt(self, client: Client, call: Call) -> None:
        """Send the call again, unless it has ended."""
        if client.call is not call:
            return
        if self._stage.now >= call.deadline_ms:
            self._end(client, call, None, answered=False)
            return
        random, stage = self._random, self._stage
        server = client.leader
        if server is None or (stage.trouble and random.random() < self._profile.astray):
            server = random.choice(list(stage.machines))
        call.attempts += 1
        attempt = call.attempts
        if not self._is_lost():
            stage.after(1 + random.randrange(_WAY_MS), lambda: self._arrive(client, call, server))
        stage.after(self._profile.retry_ms, lambda: self._retry(client, call, attempt))

    def _retry(self, client: Client, call: Call, attempt: int) -> None:
        if client.call is call and call.attempts == attempt:
            client.leader = None
            self._attempt(client, call)

    def _arrive(self, client: Client, call: Call, server: ServerId) -> None:
        if client.call is not call:
            return
        machine = self._stage.machines[server]
        if machine.run is None:
            self._deliver_answer(lambda: self._refused(client, call, None))
            return
        number = self.next_number()
        self._waiting[number] = client, call
        if call.request is None or call.value is None:
            self._checker.request_sent(server, ReadReady, number)
            machine.step(ReadRequested(number))
            return
        fillers = tuple(b"filler %d.%d" % (number, part) for part in range(self._random.choice((0, 0, 0, 0, 1, 4))))
        write = request_entry(call.request, write_command(call.key, call.value, number))
        commands = self._commands(client, (*fillers, write))
        self._checker.proposed(number, commands)
        machine.step(Proposed(proposal_id=number, commands=commands, report_accepted=number % 3 == 0))

    def _commands(self, client: Client, values: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Return the proposed commands as the log stores them; on Kafka's wire, one batch.

        Every second client has a producer. For the others, only the request id in the command identifies a repetition.
        """
        if self._kafka is None:
            return tuple(map(self.headed, values))
        producer = client.number if client.number % 2 else None
        return self._kafka.batch(values[-self._kafka.batch_records :], self._stage.now, producer)

    def _executed(self, client: Client, call: Call, state: StateMachine, index: Index) -> None:
        """Answer a write after the server's state machine has applied it or an earlier attempt."""
        request = call.request
        if request is None or call.value is None:
            return
        result = state.machine.result_of(request)
        if result is None:
            self._checker.marks.see("session expired")
            self._deliver_answer(lambda: self._expired(client, call, index))
            return
        if self._checker.executed_at.get(call.value) != index:
            self._checker.marks.see("write repeated and executed once")
        before = decode_result(result)
        self._deliver_answer(lambda: self._answered(client, call, before, index))

    def _answered(self, client: Client, call: Call, found: int, index: Index) -> None:
        client.seen = max(client.seen, index)
        if client.call is call:
            self._end(client, call, found, answered=True)

    def _expired(self, client: Client, call: Call, index: Index) -> None:
        """End a call of unknown outcome; a new session begins at the highest index that the client has received."""
        client.seen = max(client.seen, index)
        if client.call is call:
            client.session_start = client.seen
            self._end(client, call, None, answered=False)

    def _refused(self, client: Client, call: Call, leader: ServerId | None) -> None:
        if client.call is call:
            # On Kafka's wire a server may know only the number of the leader.
            client.leader = leader if leader in self._stage.machines else None
            attempt = call.attempts
            self._stage.after(5 + self._random.randrange(20), lambda: self._attempt_again(client, call, attempt))

    def _attempt_again(self, client: Client, call: Call, attempt: int) -> None:
        if client.call is call and call.attempts == attempt:
            self._attempt(client, call)

    def _end(self, client: Client, call: Call, found: int | None, *, answered: bool) -> None:
        moment = self._next_moment() if answered else None
        self._operations.append(Operation(call.key, call.value, found, call.called, moment))
        if answered and call.value is None:
            self.reads_answered += 1
        elif answered:
            self.writes_answered += 1
        client.call = None
        think_ms = self._profile.think_ms if self._stage.trouble else 1
        self._stage.after(1 + int(self._random.expovariate(1 / think_ms)), lambda: self._call(client))

    def _deliver_answer(self, arrive: Callable[[], None]) -> None:
        if not self._is_lost():
            self._stage.after(1 + self._random.randrange(_WAY_MS), arrive)

    def _is_lost(self) -> bool:
        return self._stage.trouble and self._random.random() < self._profile.loss

    def _next_moment(self) -> int:
        self._moment += 1
        return self._moment
