"""What a member may do with a request to join: ignore it, reject it, redirect it, accept it (RFC, on joining)."""

from dataclasses import replace

import pytest

from gossip.core.events import LeaveRequested, MaintenanceSwitched
from gossip.core.member import NodeInfo
from gossip.core.messages import DOMAIN, JoinAck, JoinNak, JoinRedirect, JoinReq, RefusalCode
from gossip.core.swim import Swim
from tests.spec.gossip_story import Story, info_of, sent

REQUEST = JoinReq(info_of(1), b"t")


@pytest.mark.parametrize("event", [LeaveRequested(), MaintenanceSwitched(on=True)])
@pytest.mark.parametrize("token_valid", [False, True])
def test_a_node_that_leaves_or_is_in_maintenance_ignores_the_request(
    event: LeaveRequested | MaintenanceSwitched,
    *,
    token_valid: bool,
) -> None:
    story = Story()
    story.step(event)
    assert story.hear(1, REQUEST, token_valid=token_valid) == []
    assert story.entry(1) is None


def test_after_maintenance_it_accepts_again() -> None:
    story = Story()
    story.step(MaintenanceSwitched(on=True))
    story.step(MaintenanceSwitched(on=False))
    assert len(sent(story.hear(1, REQUEST, token_valid=True), JoinAck)) == 1


def test_in_maintenance_a_node_still_answers_its_peers_and_probes_them() -> None:
    story = Story()
    story.befriend(1)
    story.step(MaintenanceSwitched(on=True))
    assert len(story.hear(1, story.ping(1))) == 1
    assert story.pass_time(2_000, answering=(1,))
    assert story.peers() == {1}


def test_the_group_s_own_policy_rejects_with_its_domain_code_and_etag() -> None:
    refusal = JoinNak("policy", 17, b"too old")

    def admit(info: NodeInfo) -> JoinNak | None:
        return refusal if info.metadata == b"version 1" else None

    story = Story()
    story.swim = Swim(story.us, story.options, story.swim._random, 0, admit=admit)
    old = JoinReq(info_of(1, metadata=b"version 1"), b"t")
    assert [each for _, each in sent(story.hear(1, old, token_valid=True), JoinNak)] == [
        replace(refusal, receiver_generation=1)
    ]
    assert story.entry(1) is None, "rejected at no cost in memory"
    new = JoinReq(info_of(1, metadata=b"version 2"), b"t")
    assert len(sent(story.hear(1, new, token_valid=True), JoinAck)) == 1


def test_at_capacity_it_redirects_to_a_member_with_room_and_rejects_if_it_knows_none() -> None:
    story = Story(capacity=1)
    story.befriend(2)
    story.hear(2, story.ping(2, room=(8, 8)))
    rejected = story.hear(1, JoinReq(info_of(1, capacity=1), b"t"), token_valid=True)
    assert [(each.domain, each.code) for _, each in sent(rejected, JoinNak)] == [(DOMAIN, RefusalCode.AT_CAPACITY)]
    story.hear(2, story.ping(2, room=(8, 1)))
    redirected = sent(story.hear(1, JoinReq(info_of(1, capacity=1), b"t"), token_valid=True), JoinRedirect)
    assert [each.addresses for _, each in redirected] == [(info_of(2).address,)]
