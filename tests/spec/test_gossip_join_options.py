"""Options of a member that receives a request to join: ignore, reject, redirect, accept (RFC, on joining)."""

import pytest
from msgspec.structs import replace

from gossip.core.events import LeaveRequested, MaintenanceSwitched
from gossip.core.member import NodeInfo
from gossip.core.messages import DOMAIN, JoinAck, JoinNak, JoinRedirect, JoinReq, RefusalCode
from gossip.core.swim import Swim
from tests.spec.gossip_story import Story, info_of, sent

REQUEST = JoinReq(info_of(1), b"t")


@pytest.mark.parametrize("event", [LeaveRequested(), MaintenanceSwitched(on=True)])
@pytest.mark.parametrize("token_valid", [False, True])
def test_join_ignored_when_leaving_or_in_maintenance(
    event: LeaveRequested | MaintenanceSwitched,
    *,
    token_valid: bool,
) -> None:
    story = Story()
    story.step(event)
    assert story.receive(1, REQUEST, token_valid=token_valid) == []
    assert story.entry(1) is None


def test_join_accepted_after_maintenance() -> None:
    story = Story()
    story.step(MaintenanceSwitched(on=True))
    story.step(MaintenanceSwitched(on=False))
    assert len(sent(story.receive(1, REQUEST, token_valid=True), JoinAck)) == 1


def test_peer_links_continue_in_maintenance() -> None:
    story = Story().with_peers(1)
    story.step(MaintenanceSwitched(on=True))
    assert len(story.receive(1, story.ping(1))) == 1
    assert story.pass_time(2_000, answering=(1,))
    assert story.peers() == {1}


def test_group_policy_rejects_with_code_and_etag() -> None:
    refusal = JoinNak("policy", 17, b"too old")

    def admit(info: NodeInfo) -> JoinNak | None:
        return refusal if info.metadata == b"version 1" else None

    story = Story()
    story.swim = Swim(story.us, story.options, story.swim._random, 0, admit=admit)
    old = JoinReq(info_of(1, metadata=b"version 1"), b"t")
    assert [each for _, each in sent(story.receive(1, old, token_valid=True), JoinNak)] == [
        replace(refusal, receiver_generation=1)
    ]
    assert story.entry(1) is None, "a rejection does not use memory"
    new = JoinReq(info_of(1, metadata=b"version 2"), b"t")
    assert len(sent(story.receive(1, new, token_valid=True), JoinAck)) == 1


def test_full_member_redirects_or_rejects() -> None:
    story = Story(capacity=1).with_peers(2)
    story.receive(2, story.ping(2, room=(8, 8)))
    rejected = story.receive(1, JoinReq(info_of(1, capacity=1), b"t"), token_valid=True)
    assert [(each.domain, each.code) for _, each in sent(rejected, JoinNak)] == [(DOMAIN, RefusalCode.AT_CAPACITY)]
    story.receive(2, story.ping(2, room=(8, 1)))
    redirected = sent(story.receive(1, JoinReq(info_of(1, capacity=1), b"t"), token_valid=True), JoinRedirect)
    assert [each.addresses for _, each in redirected] == [(info_of(2).address,)]
