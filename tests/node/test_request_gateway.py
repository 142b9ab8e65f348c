"""The gateway between listener and server, and the outcomes of submissions: acknowledged, refused or unknown."""

# ruff: noqa: ARG002 - the fakes have the parameters of the originals

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from bridge.api.control import SubmitOutcome
from bridge.core.log.records import Admission as AdmissionRecord
from bridge.core.log.records import Approval, Clock, Eviction, Level
from bridge.node.raft.replica import Replica, RequestGateway
from bridge.node.settings.timing import Patience
from bridge.wire.log.entries import encode
from consensus.core import messages as core
from consensus.core.effects import Outcome, ProposalResolved, Role, RoleChanged
from consensus.core.model import ORIGIN, LogId, ServerId
from consensus.protocols.garlic_farm.node.client import GarlicFarmClient, read_barrier_anywhere
from consensus.protocols.garlic_farm.node.connection import ClientAnswer
from consensus.protocols.garlic_farm.node.links import PeerLinks
from consensus.protocols.garlic_farm.node.membership import Members
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.upgrade import Identity
from consensus.server.batching import Proposal, ProposalLimit
from consensus.server.errors import NotLeaderError, ServerBusyError, ServerStoppedError
from consensus.server.server import ConsensusServer
from consensus.sessions.client import Submission
from consensus.sessions.table import RequestId
from tests.effort import each_case
from tests.node.farm_stage import LEADING, NOW_MS, OTHER, OWN, Stage

FOLLOWING = RoleChanged(Role.FOLLOWER, 7, OTHER)


@dataclass
class Server:
    """A server with replies chosen by the test."""

    answer: ProposalResolved = field(
        default_factory=lambda: ProposalResolved(
            proposal_id=0, outcome=Outcome.COMMITTED, position=LogId(41, 7), leader=OWN
        )
    )
    role: RoleChanged = LEADING
    error: Exception | None = None
    proposed: list[tuple[bytes, ...]] = field(default_factory=list)
    late: list[Callable[[ProposalResolved], None]] | None = None

    def submit(self, commands: tuple[bytes, ...], on_reply: Callable[[ProposalResolved], None]) -> Proposal:
        """Reply with the chosen answer or error, now or later."""
        self.proposed.append(commands)
        if self.error is not None:
            raise self.error
        if self.late is None:
            on_reply(self.answer)
        else:
            self.late.append(on_reply)
        return Proposal(commands, ProposalLimit(1, 1), on_reply)

    async def propose(self, commands: tuple[bytes, ...]) -> ProposalResolved:
        """Return the chosen answer; never return if replies are late."""
        if self.late is not None:
            await trio.sleep_forever()
        self.proposed.append(commands)
        if self.error is not None:
            raise self.error
        return self.answer

    def ask(self, sender: ServerId, request: core.Request, on_reply: Callable[[core.Reply | None], None]) -> None:
        """Raise the chosen error."""
        assert self.error is not None
        raise self.error


@dataclass
class Client:
    """A client with chosen outcomes of submissions; the last one repeats."""

    answers: list[Submission | Exception]
    submissions: int = 0
    leader: int | None = None

    def leader_is(self, server: int) -> None:
        """Store the leader."""
        self.leader = server

    async def submit(
        self, commands: Sequence[bytes], *, timeout_s: float = 10.0, repeat_unknown: bool = False
    ) -> Submission:
        """Return the next outcome, after up to a second."""
        await trio.sleep(min(timeout_s, 1.0))
        answer = self.answers[min(self.submissions, len(self.answers) - 1)]
        self.submissions += 1
        if isinstance(answer, Exception):
            raise answer
        return answer


class NoSessions:
    """A state machine whose entries do not name requests."""

    def request_of(self, command: bytes) -> RequestId | None:
        """Return None."""
        return None

    def was_executed(self, request: RequestId) -> bool:
        """Fail: it must not be called."""
        raise AssertionError(request)


def replica(server: Server, client: Client | None = None) -> Replica:
    return Replica(
        cast("ConsensusServer", server),
        cast("PeerLinks", None),
        cast("GarlicFarmClient | None", client),
        OWN,
        NoSessions(),
        cast("Members", None),
        Identity("c", OWN),
        Patience(),
    )


def gateway_answer(opened: RequestGateway, commands: tuple[bytes, ...]) -> ClientAnswer | None:
    answers: list[ClientAnswer | None] = []
    opened.client_request(commands, answers.append)
    (answer,) = answers
    return answer


def gateway(server: Server) -> RequestGateway:
    running = replica(server)
    return RequestGateway(lambda: running, lambda _: False)


@each_case(
    ("resolve", "expected"),
    [
        (
            ProposalResolved(proposal_id=0, outcome=Outcome.COMMITTED, position=LogId(41, 7), leader=OWN),
            ClientAnswer(accepted=True, leader=OWN, next_index=42, term=7),
        ),
        (
            ProposalResolved(proposal_id=0, outcome=Outcome.NOT_LEADER, leader=OTHER),
            ClientAnswer(accepted=False, leader=OTHER, next_index=0, term=1),
        ),
        (
            ProposalResolved(proposal_id=0, outcome=Outcome.NOT_LEADER),
            ClientAnswer(accepted=False, leader=None, next_index=0, term=1),
        ),
        (ProposalResolved(proposal_id=0, outcome=Outcome.BUSY, leader=OWN), ClientAnswer(busy=True, term=1)),
        (ProposalResolved(proposal_id=0, outcome=Outcome.UNKNOWN), None),
    ],
    ids=["committed", "not-leader", "no-leader", "busy", "unknown-closes"],
)
def test_outcome_has_its_answer_on_the_wire(resolve: ProposalResolved, expected: ClientAnswer | None) -> None:
    assert gateway_answer(gateway(Server(resolve)), (b"{}",)) == expected


async def test_empty_client_request_returns_leader() -> None:
    assert gateway_answer(gateway(Server(role=FOLLOWING)), ()) == ClientAnswer(
        accepted=False, leader=OTHER, next_index=0, term=7
    )
    stage = Stage()
    opened = RequestGateway(lambda: cast("Replica", stage.replica), lambda _: False)
    assert gateway_answer(opened, ()) == ClientAnswer(accepted=True, leader=OWN, next_index=1, term=1)


def test_client_cannot_admit_node() -> None:
    admission = encode(AdmissionRecord(b"n" * 8, "node-4", server_id=4))
    for disguised in (admission, admission.replace(b"admission", rb"\u0061dmission")):
        with pytest.raises(GarlicFarmError, match="only the leader writes these entries"):
            gateway_answer(gateway(Server()), (disguised,))


def test_client_cannot_approve_evict_or_raise_level() -> None:
    for record in (Approval(b"n" * 8, "n", b"o" * 8, server_id=4), Eviction(b"n" * 8, 1, ()), Level(2, "0.1.0")):
        with pytest.raises(GarlicFarmError, match="only the leader writes these entries"):
            gateway_answer(gateway(Server()), (encode(record),))


def test_evicted_server_is_refused() -> None:
    running = replica(Server())
    opened = RequestGateway(lambda: running, lambda server_id: server_id == OTHER)
    request = core.RequestVote(term=7, candidate=OTHER, last=ORIGIN, correlation=1)
    with pytest.raises(GarlicFarmError, match="the identity of server 2 was retired or evicted") as refused:
        opened.request(OTHER, request, lambda _: None)
    assert refused.value.fault is Fault.EXPELLED


def test_client_cannot_write_clock_entries() -> None:
    server = Server()
    with pytest.raises(GarlicFarmError, match="only the leader writes these entries") as refused:
        gateway_answer(gateway(server), (b"{}", encode(Clock(NOW_MS, OWN))))
    assert refused.value.fault is Fault.OUT_OF_TURN
    assert server.proposed == []


def test_command_too_large_to_store_is_client_fault() -> None:
    with pytest.raises(GarlicFarmError, match="at most 5 can be stored") as refused:
        gateway_answer(gateway(Server(error=ValueError("a command has 9 bytes; at most 5 can be stored"))), (b"x",))
    assert refused.value.fault is Fault.TOO_LARGE


@pytest.mark.parametrize("error", [ServerBusyError("1024 requests"), ServerStoppedError("the server has stopped")])
def test_peer_is_refused_as_busy_when_server_cannot_serve(error: Exception) -> None:
    request = core.RequestVote(term=1, candidate=OTHER, last=ORIGIN, correlation=1)
    with pytest.raises(GarlicFarmError) as refused:
        gateway(Server(error=error)).request(OTHER, request, no_answer_expected)
    assert refused.value.fault is Fault.BUSY
    with pytest.raises(GarlicFarmError, match="has not started its Raft server yet"):
        RequestGateway(lambda: None, lambda _: False).request(OTHER, request, no_answer_expected)


def no_answer_expected(reply: core.Reply | None) -> None:
    pytest.fail(f"unexpected reply {reply}")


def test_client_before_founding_gets_leader_none() -> None:
    assert gateway_answer(RequestGateway(lambda: None, lambda _: False), (b"{}",)) == ClientAnswer(
        accepted=False, leader=None, next_index=0, term=0
    )


@pytest.mark.parametrize("outcome", [Outcome.BUSY, Outcome.NOT_LEADER])
def test_request_ends_although_replica_is_replaced(outcome: Outcome) -> None:
    server = Server(ProposalResolved(proposal_id=0, outcome=outcome), late=[])
    running: list[Replica | None] = [replica(server), None]
    answers: list[ClientAnswer | None] = []
    RequestGateway(lambda: running.pop(0), lambda _: False).client_request((b"{}",), answers.append)
    assert answers == []
    assert running == [None], "the replica is looked up once"
    assert server.late is not None
    for answer_now in server.late:
        answer_now(server.answer)
    [answer] = answers
    assert answer is not None
    assert not answer.accepted


# -- submitting from this node -----------------------------------------------------------------------------------------

REFUSED = Submission(Outcome.NOT_LEADER, None, None, "server 2 does not know a leader")
UNKNOWN = Submission(Outcome.UNKNOWN, None, None, "server 2 closed the connection without a reply")
COMMITTED = Submission(Outcome.COMMITTED, LogId(5, 2), OTHER)


async def test_leader_commits_locally_and_follower_by_client(autojump_clock: MockClock) -> None:
    here, there = Server(), Client([COMMITTED])
    assert (await replica(here, there).submit(b"{}")).index == 41
    assert there.submissions == 0
    assert (await replica(Server(role=FOLLOWING), there).submit(b"{}")).index == 5


async def test_leader_refuses_submitted_leader_kinds() -> None:
    here = Server()
    answer = await replica(here).submit(encode(Level(65535, "9.9.9")), repeat_unknown=True)
    assert answer.outcome is SubmitOutcome.REFUSED
    assert "only the leader writes these entries" in answer.reason
    assert here.proposed == []


async def test_refused_submission_is_repeated_until_leader_exists(autojump_clock: MockClock) -> None:
    answer = await replica(Server(role=FOLLOWING), Client([REFUSED, REFUSED, COMMITTED])).submit(b"{}")
    assert (answer.outcome, answer.index) == (SubmitOutcome.COMMITTED, 5)


async def test_submission_refused_until_timeout_has_last_reason(autojump_clock: MockClock) -> None:
    for last in (REFUSED, GarlicFarmError(Fault.UNREACHABLE, "server 2 does not know a leader")):
        began = trio.current_time()
        answer = await replica(Server(role=FOLLOWING), Client([last])).submit(b"{}")
        assert (answer.outcome, answer.reason) == (SubmitOutcome.REFUSED, "server 2 does not know a leader")
        assert trio.current_time() - began <= Patience().submit_s + 1


async def test_unknown_submission_is_repeated_only_on_request(autojump_clock: MockClock) -> None:
    client = Client([UNKNOWN, COMMITTED])
    assert (await replica(Server(role=FOLLOWING), client).submit(b"{}")).outcome is SubmitOutcome.UNKNOWN
    assert client.submissions == 1
    client = Client([UNKNOWN, COMMITTED])
    answer = await replica(Server(role=FOLLOWING), client).submit(b"{}", repeat_unknown=True)
    assert answer.outcome is SubmitOutcome.COMMITTED


async def test_submission_of_expired_session_ends_immediately(autojump_clock: MockClock) -> None:
    client = Client([UNKNOWN, Submission(Outcome.UNKNOWN, reason="expired", expired=True)])
    answer = await replica(Server(role=FOLLOWING), client).submit(b"{}", repeat_unknown=True)
    assert (answer.outcome, client.submissions) == (SubmitOutcome.EXPIRED, 2)


async def test_unknown_submission_stays_unknown_after_refusal(autojump_clock: MockClock) -> None:
    answer = await replica(Server(role=FOLLOWING), Client([UNKNOWN, REFUSED])).submit(b"{}", repeat_unknown=True)
    assert answer.outcome is SubmitOutcome.UNKNOWN


async def test_unresponsive_server_leaves_outcome_unknown(autojump_clock: MockClock) -> None:
    answer = await replica(Server(late=[])).submit(b"{}")
    assert answer.outcome is SubmitOutcome.UNKNOWN
    assert "committed or not" in answer.reason


async def test_submission_after_process_pause_is_unknown(mock_clock: MockClock) -> None:
    client = Client([GarlicFarmError(Fault.BUSY, "busy"), Submission(Outcome.UNKNOWN, None, None)])
    following = replica(Server(role=FOLLOWING), client)
    answers = []

    async def submit() -> None:
        answers.append(await following.submit(b"x", repeat_unknown=True))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(submit)
        for seconds in (1.0, 1_000.0):
            # The second jump is a process that did not run between two attempts.
            await wait_all_tasks_blocked()
            mock_clock.jump(seconds)
    assert [answer.outcome for answer in answers] == [SubmitOutcome.UNKNOWN]
    assert client.submissions == 2


async def test_read_after_process_pause_is_refused(mock_clock: MockClock) -> None:
    class PausedServer:
        async def read_barrier(self) -> int:
            mock_clock.jump(1_000.0)
            raise NotLeaderError(None)

    class LateClient:
        async def read_index(self, *, timeout_s: float) -> Submission:
            with trio.move_on_after(timeout_s):
                await trio.sleep_forever()
            return Submission(Outcome.UNKNOWN, None, None)

    with pytest.raises(NotLeaderError):
        await read_barrier_anywhere(
            cast("ConsensusServer", PausedServer()), cast("GarlicFarmClient", LateClient()), timeout_s=1.0
        )


def test_client_of_replica_follows_elected_leader() -> None:
    client = Client([])
    opened = replica(Server(), client)
    opened.on_notice(FOLLOWING)
    assert client.leader == OTHER
    opened.on_notice(RoleChanged(Role.FOLLOWER, 8, None))
    assert client.leader == OTHER
