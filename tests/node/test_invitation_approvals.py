"""The approvals of redeemed invitations, and the port of a node: each failure is reported once."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from bridge.api.control import Refused
from bridge.api.requests import RevokeRequest
from bridge.core.membership.admission import Standing
from bridge.node.inviting.granting import APPROVE_EVERY_S, LOOK_EVERY_S, Approvals
from bridge.node.inviting.invitations import APPROVAL_LIFETIME_MS, FILE_NAME, Invitations, Joiner, Use
from bridge.node.inviting.inviting import CERTIFICATE_RETRY_S, Inviting, NotInvitingError
from bridge.node.inviting.listener import DIRECTORY, listener_certificate
from bridge.node.inviting.requests import InvitationRequests
from tests.members import farm_member
from tests.node.gossip_farm import in_simulated_time

HOUR_S = 3600
NAME_IS_TAKEN = "another identity has the name site-1"


@dataclass
class Story:
    """Approvals with a log that the test fills."""

    directory: Path
    refused: frozenset[bytes] = frozenset()
    founded: bool = True
    admitted: dict[int, Any] = field(default_factory=dict)
    failures: list[tuple[str, str]] = field(default_factory=list)
    attempts: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.invitations = Invitations(
            self.directory, lambda: 1_800_000_000_000 + int(trio.current_time() * 1000), monotonic_s=trio.current_time
        )

    def redeem(self, *names: str) -> list[Joiner]:
        """Redeem one invitation once for each name, and return the nodes."""
        made = [Joiner(bytes([number]) * 32, name) for number, name in enumerate(names)]
        _, secret = self.invitations.create(len(names), HOUR_S, 7671)
        for each in made:
            self.invitations.redeem(secret, each)
        return made

    async def approve(self, node_id: bytes) -> None:
        """Admit a node, unless it is refused."""
        await trio.lowlevel.checkpoint()
        self.attempts.append(node_id)
        if node_id in self.refused:
            raise Refused(409, "not-approved", NAME_IS_TAKEN)
        self.admitted[len(self.admitted)] = SimpleNamespace(node_id=node_id, standing=Standing.MEMBER)

    async def run(self, seconds: float) -> None:
        """Approve for some seconds."""
        farm: Any = SimpleNamespace(state=SimpleNamespace(admitted=self.admitted))
        approvals = Approvals(
            invitations=self.invitations,
            farm=lambda: farm if self.founded else None,
            is_present=lambda _: True,
            approve=self.approve,
            failed=lambda use, reason: self.failures.append((use.name, reason)),
        )
        with trio.move_on_after(seconds):
            await approvals.run(trio.Lock())


def names(uses: Any) -> list[str]:
    return [use.name for use in uses]


@in_simulated_time
async def test_refused_node_does_not_delay_others(tmp_path: Path) -> None:
    story = Story(tmp_path)
    clone, other, third = story.redeem("site-1", "site-2", "site-3")
    story.refused = frozenset({clone.node_id, third.node_id})
    await story.run(2 * LOOK_EVERY_S)
    assert [each.node_id for each in story.admitted.values()] == [other.node_id]
    await story.run(10 * APPROVE_EVERY_S)
    assert names(story.invitations.waiting()) == ["site-1", "site-3"]
    assert 8 <= story.attempts.count(clone.node_id) <= 13


@in_simulated_time
async def test_refusals_are_reported_once_for_each_node(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.refused = frozenset(each.node_id for each in story.redeem("site-1", "site-3"))
    await story.run(10 * APPROVE_EVERY_S)
    assert story.failures == [("site-1", NAME_IS_TAKEN), ("site-3", NAME_IS_TAKEN)]


@in_simulated_time
async def test_founder_is_not_late_before_creation(tmp_path: Path) -> None:
    story = Story(tmp_path, founded=False)
    [founder] = story.redeem("site-2")
    await story.run(2 * APPROVAL_LIFETIME_MS / 1000)
    assert story.failures == []
    story.founded = True
    story.admitted[1] = SimpleNamespace(node_id=founder.node_id, standing=Standing.MEMBER)
    await story.run(2 * LOOK_EVERY_S)
    assert (list(story.invitations.waiting()), story.failures, story.attempts) == ([], [], [])


@in_simulated_time
async def test_late_node_is_not_approved(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.redeem("site-2")
    await trio.sleep(APPROVAL_LIFETIME_MS / 1000 + 1)
    await story.run(2 * LOOK_EVERY_S)
    assert (names(story.invitations.waiting()), story.attempts) == ([], [])
    [(name, reason)] = story.failures
    assert name == "site-2"
    assert "garlicfarm node approve" in reason


@in_simulated_time
async def test_revocation_at_another_node_refers_to_the_inviting_node(tmp_path: Path) -> None:
    here, other = Story(tmp_path), Story(tmp_path / "other")
    made, _ = here.invitations.create(1, HOUR_S, 7671)

    def requests_to(story: Story) -> InvitationRequests:
        node: Any = SimpleNamespace(lock=trio.Lock(), invitations=story.invitations)
        return InvitationRequests(node)

    with pytest.raises(Refused, match="only the node that made an invitation") as refused:
        await requests_to(other).revoke(RevokeRequest(made.id))
    assert (refused.value.status, refused.value.code) == (404, "no-such-invitation")
    assert "--node" in str(refused.value)
    assert (await requests_to(here).revoke(RevokeRequest(made.id))).invitation.state == "revoked"


@in_simulated_time
async def test_revoked_use_is_not_approved(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.redeem("thief")
    story.invitations.revoke(story.invitations.all[0].id)
    await story.run(10 * APPROVE_EVERY_S)
    assert story.attempts == []


@in_simulated_time
async def test_use_revoked_during_approval_is_not_approved(tmp_path: Path) -> None:
    story = Story(tmp_path)
    [first] = story.redeem("site-1")
    story.redeem("site-2", "thief")
    approve = story.approve

    async def approve_and_revoke(node_id: bytes) -> None:
        story.invitations.revoke(story.invitations.all[-1].id)
        await approve(node_id)

    story.approve = approve_and_revoke  # type: ignore[method-assign]
    await story.run(10 * APPROVE_EVERY_S)
    assert story.attempts == [first.node_id]


@in_simulated_time
async def test_full_disk_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(tmp_path)
    story.redeem("site-2")

    def full(_: Use) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(story.invitations, "settle", full)
    await story.run(10 * LOOK_EVERY_S)
    assert story.failures == [("site-2", "the disk of this node: No space left on device")]


def inviting(directory: Path, events: list[tuple[str, Any]], host: str = "127.0.0.1") -> Inviting:
    settings = SimpleNamespace(
        state_dir=directory, gossip=object(), consensus=SimpleNamespace(bind=SimpleNamespace(host=host))
    )
    trace = SimpleNamespace(append=lambda event_type, facts: events.append((event_type.kind, facts["reason"])))
    node: Any = SimpleNamespace(local=SimpleNamespace(configuration=settings, trace=trace))

    async def approve(_: bytes) -> None:
        await trio.lowlevel.checkpoint()

    current: Any = SimpleNamespace(farm=None)
    return Inviting(node=node, current=current, invitations=Invitations(directory), approve=approve)


def inviting_creator(directory: Path, expect: int) -> Inviting:
    """Return the invitations of a node that will create a farm with others."""
    made = inviting(directory, [])
    node: Any = made.node
    local = node.local
    local.configuration.consensus.advertise = SimpleNamespace(host="127.0.0.1")
    local.trace = SimpleNamespace(append=lambda *_: None)
    local.farm_key = SimpleNamespace(expect=expect)
    node.forming = SimpleNamespace(cluster_id=None)
    return made


@pytest.mark.parametrize(
    ("expect", "invited", "uses", "remedy"),
    [
        (4, 0, 4, "repeat the command with `--uses 3`"),
        (4, 2, 2, "repeat the command with `--uses 1`"),
        (4, 3, 1, "revoke an invitation"),
        (1, 0, 1, "repeat the command when the farm exists"),
    ],
)
async def test_refused_invitation_has_possible_remedy(
    tmp_path: Path, expect: int, invited: int, uses: int, remedy: str
) -> None:
    made = inviting_creator(tmp_path, expect)
    for _ in range(invited):
        await made.create(1, HOUR_S)
    with pytest.raises(NotInvitingError) as refused:
        await made.create(uses, HOUR_S)
    assert remedy in str(refused.value)
    assert ("invite list" in str(refused.value)) == (invited == expect - 1 > 0)


async def test_simultaneous_invitations_respect_the_limit(tmp_path: Path) -> None:
    """Before the farm is created, each further token would add a founder."""
    made = inviting_creator(tmp_path, 3)
    ends = list[str]()

    async def create() -> None:
        try:
            await made.create(2, HOUR_S)
            ends.append("created")
        except NotInvitingError:
            ends.append("refused")

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(create)
    assert sorted(ends) == ["created", "refused"]


def test_names_of_running_nodes_are_taken(tmp_path: Path) -> None:
    made, key = inviting(tmp_path, []), bytes(32)
    members = (
        farm_member(Joiner(key, "").node_id, name="site-b"),
        farm_member(b"1", name="site-c"),
        farm_member(b"2", name="site-d", reachable=False),
    )
    node: Any = made.node
    node.local.configuration.name = "site-a"
    node.member_directory = SimpleNamespace(members=lambda: members)
    names = [f"site-{letter}" for letter in "abcde"]
    assert [name for name in names if made._is_name_taken(Joiner(key, name))] == ["site-a", "site-c"]


async def in_background(made: Inviting, seconds: float, then: Callable[[], None] = lambda: None) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        await trio.sleep(seconds)
        then()
        await trio.sleep(CERTIFICATE_RETRY_S + 2 * LOOK_EVERY_S)
        nursery.cancel_scope.cancel()


@in_simulated_time
async def test_damaged_certificate_does_not_end_node(tmp_path: Path) -> None:
    listener_certificate(tmp_path)
    damaged = tmp_path / DIRECTORY / "tls.pem"
    damaged.write_text("damaged")
    events: list[tuple[str, Any]] = []
    made = inviting(tmp_path, events)
    made.invitations.create(1, HOUR_S, 1)
    await in_background(made, 3 * CERTIFICATE_RETRY_S, damaged.unlink)
    [(kind, reason), *later] = events
    assert kind == "invitation-port-failed"
    assert "is damaged" in reason
    # The node has made a new certificate. Later events may be about port 1 of this test, which only root may open.
    assert damaged.exists()
    assert [reason for _, reason in later if "damaged" in reason] == []


@in_simulated_time
async def test_port_that_cannot_be_opened_is_reported_once(tmp_path: Path) -> None:
    events: list[tuple[str, Any]] = []
    made = inviting(tmp_path, events, host="192.0.2.1")
    made.invitations.create(1, HOUR_S, 7671)
    await in_background(made, 10 * LOOK_EVERY_S)
    [(kind, reason)] = events
    assert kind == "invitation-port-failed"
    assert reason.startswith("192.0.2.1:7671 cannot be opened")
    assert (tmp_path / FILE_NAME).exists()
