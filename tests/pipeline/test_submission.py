"""Submission of factors to nodes: accepted replies, the next node after a failure, and reported reasons."""

import json
from http import HTTPStatus
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bridge.wire.log.proof import proven
from pipeline.feedback.client_key import ClientKey
from pipeline.feedback.submitting import NodeSubmission, NotSubmittedError, Submitted
from pipeline.source.log_client import NO_CREDENTIALS
from tests.pipeline.farm_log_server import MadeUpLog, serve_log

FACTORS = {"factors": {"throughIndex": 3, "formula": "strain-1", "factors": {}}}


def reply_with(status: HTTPStatus = HTTPStatus.OK, **reply: object) -> MadeUpLog:
    return MadeUpLog(submit_answer=(status, reply))


def submission(*addresses: str) -> NodeSubmission:
    return NodeSubmission(addresses, NO_CREDENTIALS)


def test_committed_entry_reports_index_and_verdict(tmp_path: Path) -> None:
    log = reply_with(outcome="committed", index=218, reason="")
    with serve_log(log, tmp_path / "a.sock") as address:
        assert submission(address).submit(FACTORS) == Submitted(218)
    assert [json.loads(body) for body in log.submitted] == [FACTORS]
    refusing = reply_with(outcome="committed", index=219, reason="one from up to 3 was accepted")
    with serve_log(refusing, tmp_path / "b.sock") as address:
        assert submission(address).submit(FACTORS) == Submitted(219, "one from up to 3 was accepted")


@pytest.mark.parametrize(
    "reply", [{"outcome": "committed", **index} for index in ({}, {"index": None}, {"index": "218"}, {"index": [1]})]
)
def test_committed_reply_without_index_fails_without_retry(tmp_path: Path, reply: dict[str, object]) -> None:
    strange, other = MadeUpLog(submit_answer=(HTTPStatus.OK, reply)), reply_with(outcome="committed", index=1)
    with (
        serve_log(strange, tmp_path / "a.sock") as one,
        serve_log(other, tmp_path / "b.sock") as two,
        pytest.raises(NotSubmittedError, match=r"a\.sock: committed and names the index .*: it may be in the log"),
    ):
        submission(one, two).submit(FACTORS)
    assert other.submitted == []


def test_entry_with_unknown_outcome_is_not_repeated(tmp_path: Path) -> None:
    unknown = reply_with(HTTPStatus.GATEWAY_TIMEOUT, outcome="unknown", reason="no answer")
    other = reply_with(outcome="committed", index=1)
    with (
        serve_log(unknown, tmp_path / "a.sock") as one,
        serve_log(other, tmp_path / "b.sock") as two,
        pytest.raises(NotSubmittedError, match=r"a\.sock: unknown no answer$"),
    ):
        submission(one, two).submit(FACTORS)
    assert other.submitted == []


def test_node_of_another_farm_is_skipped(tmp_path: Path) -> None:
    other, ours = reply_with(outcome="committed", index=1), reply_with(outcome="committed", index=2)
    other.cluster_id = "another"
    with serve_log(other, tmp_path / "a.sock") as one, serve_log(ours, tmp_path / "b.sock") as two:
        assert NodeSubmission((one, two), NO_CREDENTIALS, ours.cluster_id).submit(FACTORS) == Submitted(2)
        with pytest.raises(NotSubmittedError, match="belongs to the cluster another, not to"):
            NodeSubmission((one,), NO_CREDENTIALS, ours.cluster_id).submit(FACTORS)
    assert other.submitted == []


def test_removed_servers_come_from_nodes_of_same_farm(tmp_path: Path) -> None:
    other, ours = MadeUpLog(removed=(1, 2)), MadeUpLog(removed=(3,))
    other.cluster_id = "another"
    down = str(tmp_path / "absent.sock")
    with serve_log(other, tmp_path / "a.sock") as one, serve_log(ours, tmp_path / "b.sock") as two:
        assert NodeSubmission((down, one, two), NO_CREDENTIALS, ours.cluster_id).removed() == {3}
        with pytest.raises(NotSubmittedError, match=r"absent\.sock: .*; .*a\.sock: belongs to the cluster another"):
            NodeSubmission((down, one), NO_CREDENTIALS, ours.cluster_id).removed()


def test_unavailable_or_forbidding_node_is_skipped(tmp_path: Path) -> None:
    busy = reply_with(HTTPStatus.SERVICE_UNAVAILABLE, outcome="busy")
    words = "this token only reads; use the one in the node's control.admin.token"
    reading = reply_with(HTTPStatus.FORBIDDEN, error={"code": "forbidden", "text": words})
    accepting = reply_with(outcome="committed", index=5)
    down = str(tmp_path / "absent.sock")
    with (
        serve_log(busy, tmp_path / "a.sock") as one,
        serve_log(reading, tmp_path / "b.sock") as two,
        serve_log(accepting, tmp_path / "c.sock") as three,
    ):
        assert submission(down, one, two, three).submit(FACTORS) == Submitted(5)
        # without another node, the error has the reason of each node
        with pytest.raises(NotSubmittedError) as caught:
            submission(down, one, two).submit(FACTORS)
    assert [part.partition(": ")[0].rpartition("/")[2] for part in str(caught.value).split("; /")] == [
        "absent.sock",
        "a.sock",
        "b.sock",
    ]
    assert "control.admin.token" in str(caught.value)


def test_signed_entry_is_equal_for_all_nodes(tmp_path: Path) -> None:
    busy = reply_with(HTTPStatus.SERVICE_UNAVAILABLE, outcome="busy")
    accepting = reply_with(outcome="committed", index=5)
    key = Ed25519PrivateKey.generate()
    with serve_log(busy, tmp_path / "a.sock") as one, serve_log(accepting, tmp_path / "b.sock") as two:
        submits = NodeSubmission((one, two), NO_CREDENTIALS, accepting.cluster_id, ClientKey(key))
        assert submits.submit(FACTORS) == Submitted(5)
    assert busy.submitted == accepting.submitted
    [entry] = accepting.submitted
    proof = proven(entry, bytes.fromhex(accepting.cluster_id))
    assert proof is not None
    assert proof.public_key == key.public_key().public_bytes_raw()
    assert {name: value for name, value in json.loads(entry).items() if name != "proof"} == FACTORS
