"""Submitting factors to nodes: which answers count, which node is asked next, and what is reported."""

import json
from http import HTTPStatus
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bridge.wire.log.proof import proven
from pipeline.feedback.client_key import ClientKey
from pipeline.feedback.submitting import NodeSubmission, NotSubmittedError, Submitted
from pipeline.source.log_client import NO_CREDENTIALS
from tests.pipeline.farm_log_server import MadeUpLog, served

FACTORS = {"factors": {"throughIndex": 3, "formula": "strain-1", "factors": {}}}


def answering(status: HTTPStatus = HTTPStatus.OK, **answer: object) -> MadeUpLog:
    """A node that answers submissions so."""
    return MadeUpLog(submit_answer=(status, answer))


def submission(*addresses: str) -> NodeSubmission:
    return NodeSubmission(addresses, NO_CREDENTIALS)


def test_a_committed_entry_is_told_with_its_index_and_whether_the_farm_accepted_it(tmp_path: Path) -> None:
    log = answering(outcome="committed", index=218, reason="")
    with served(log, tmp_path / "a.sock") as address:
        assert submission(address).submit(FACTORS) == Submitted(218)
    assert [json.loads(body) for body in log.submitted] == [FACTORS]
    refusing = answering(outcome="committed", index=219, reason="one from up to 3 was accepted")
    with served(refusing, tmp_path / "b.sock") as address:
        assert submission(address).submit(FACTORS) == Submitted(219, "one from up to 3 was accepted")


@pytest.mark.parametrize(
    "answer", [{"outcome": "committed", **index} for index in ({}, {"index": None}, {"index": "218"}, {"index": [1]})]
)
def test_a_committed_entry_without_an_index_is_not_submitted_and_no_other_node_is_asked(
    tmp_path: Path, answer: dict[str, object]
) -> None:
    strange, other = MadeUpLog(submit_answer=(HTTPStatus.OK, answer)), answering(outcome="committed", index=1)
    with (
        served(strange, tmp_path / "a.sock") as one,
        served(other, tmp_path / "b.sock") as two,
        pytest.raises(NotSubmittedError, match=r"a\.sock: committed and names the index .*: it may be in the log"),
    ):
        submission(one, two).submit(FACTORS)
    assert other.submitted == []


def test_an_entry_of_unknown_fate_is_not_repeated(tmp_path: Path) -> None:
    unknown = answering(HTTPStatus.GATEWAY_TIMEOUT, outcome="unknown", reason="no answer")
    other = answering(outcome="committed", index=1)
    with (
        served(unknown, tmp_path / "a.sock") as one,
        served(other, tmp_path / "b.sock") as two,
        pytest.raises(NotSubmittedError, match=r"a\.sock: unknown no answer$"),
    ):
        submission(one, two).submit(FACTORS)
    assert other.submitted == []


def test_a_node_of_another_farm_is_told_nothing(tmp_path: Path) -> None:
    other, ours = answering(outcome="committed", index=1), answering(outcome="committed", index=2)
    other.cluster_id = "another"
    with served(other, tmp_path / "a.sock") as one, served(ours, tmp_path / "b.sock") as two:
        assert NodeSubmission((one, two), NO_CREDENTIALS, ours.cluster_id).submit(FACTORS) == Submitted(2)
        with pytest.raises(NotSubmittedError, match="belongs to the cluster another, not to"):
            NodeSubmission((one,), NO_CREDENTIALS, ours.cluster_id).submit(FACTORS)
    assert other.submitted == []


def test_the_removed_servers_are_asked_of_the_farms_own_nodes(tmp_path: Path) -> None:
    other, ours = MadeUpLog(removed=(1, 2)), MadeUpLog(removed=(3,))
    other.cluster_id = "another"
    down = str(tmp_path / "absent.sock")
    with served(other, tmp_path / "a.sock") as one, served(ours, tmp_path / "b.sock") as two:
        assert NodeSubmission((down, one, two), NO_CREDENTIALS, ours.cluster_id).removed() == {3}
        with pytest.raises(NotSubmittedError, match=r"absent\.sock: .*; .*a\.sock: belongs to the cluster another"):
            NodeSubmission((down, one), NO_CREDENTIALS, ours.cluster_id).removed()


def test_a_node_that_is_down_busy_or_does_not_allow_it_is_passed_over(tmp_path: Path) -> None:
    busy = answering(HTTPStatus.SERVICE_UNAVAILABLE, outcome="busy")
    words = "this token only reads; use the one in the node's control.admin.token"
    reading = answering(HTTPStatus.FORBIDDEN, error={"code": "forbidden", "text": words})
    taking = answering(outcome="committed", index=5)
    down = str(tmp_path / "absent.sock")
    with (
        served(busy, tmp_path / "a.sock") as one,
        served(reading, tmp_path / "b.sock") as two,
        served(taking, tmp_path / "c.sock") as three,
    ):
        assert submission(down, one, two, three).submit(FACTORS) == Submitted(5)
        # and if no other is left, each one's reason is told
        with pytest.raises(NotSubmittedError) as caught:
            submission(down, one, two).submit(FACTORS)
    assert [part.partition(": ")[0].rpartition("/")[2] for part in str(caught.value).split("; /")] == [
        "absent.sock",
        "a.sock",
        "b.sock",
    ]
    assert "control.admin.token" in str(caught.value)


def test_with_a_client_key_every_node_that_is_asked_gets_the_same_signed_bytes(tmp_path: Path) -> None:
    busy = answering(HTTPStatus.SERVICE_UNAVAILABLE, outcome="busy")
    taking = answering(outcome="committed", index=5)
    key = Ed25519PrivateKey.generate()
    with served(busy, tmp_path / "a.sock") as one, served(taking, tmp_path / "b.sock") as two:
        submits = NodeSubmission((one, two), NO_CREDENTIALS, taking.cluster_id, ClientKey(key))
        assert submits.submit(FACTORS) == Submitted(5)
    assert busy.submitted == taking.submitted
    [entry] = taking.submitted
    proof = proven(entry, bytes.fromhex(taking.cluster_id))
    assert proof is not None
    assert proof.public_key == key.public_key().public_bytes_raw()
    assert {name: value for name, value in json.loads(entry).items() if name != "proof"} == FACTORS
