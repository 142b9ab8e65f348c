"""Lists of peers that a client may send, and the errors for lists that are not a valid cluster.

The error texts equal the texts of `parsePeers` in the package 0.5.0 under node v20, unless a test names the difference.
"""

import pytest

from consensus.protocols.zmq_raft.wire.frames import DEFAULT_LIMITS, FrameLimits
from consensus.protocols.zmq_raft.wire.messages import MalformedPeers, Peer
from consensus.protocols.zmq_raft.wire.peers import PeersError, check_change, check_url, read_peers
from tests.effort import each_case

URL = "tcp://127.0.0.1:80"
SHAPE = "peer must be an url string or a tuple [id, url] or an object with 'url' and 'id' properties"
NO_ID, NO_URL, NO_PATH = (f"peer {what} must {must}" for what, must in (
    ("id", "be a non empty string"), ("url", "be a non empty string"), ("url", "have no path"),
))  # fmt: skip
PORT = "peer url port must be in range 1-65535"
PLACEHOLDER = "peer url must not be a placeholder address"
NO_IP = "peer url must have a valid ip address in hostname"
PROTOCOL = "peer url protocol must be tcp:"


def read_malformed(value: object, limits: FrameLimits = DEFAULT_LIMITS) -> MalformedPeers:
    with pytest.raises(PeersError) as caught:
        read_peers(value, limits)
    return caught.value.malformed


@pytest.mark.parametrize("value", [[["1", URL]], [["1", URL, "more"]], [{"id": "1", "url": URL}]])
def test_peer_is_pair_or_map(value: object) -> None:
    assert read_peers(value, DEFAULT_LIMITS) == (Peer("1", URL),)


@pytest.mark.parametrize("value", [[URL], [[URL]], [{"url": URL}], [{"id": URL}]])
def test_url_alone_is_used_as_id(value: object) -> None:
    assert read_peers(value, DEFAULT_LIMITS) == (Peer(URL, URL),)


@each_case("value", ["x", {}, None, 5, b"x", True])
def test_peers_of_another_type_are_refused(value: object) -> None:
    assert read_malformed(value) == MalformedPeers("TypeError", "peers must be an array")


@each_case(
    ("value", "message"),
    [
        ([], "at least one peer must be defined in a cluster"),
        ([1], SHAPE),
        ([None], SHAPE),
        ([{}], NO_ID),
        ([[]], NO_ID),
        ([["", URL]], NO_ID),
        ([[1, URL]], NO_ID),
        ([["1", ""]], NO_URL),
        ([["1", 5]], NO_URL),
        ([["1", None]], NO_URL),
        ([["1", [URL]]], NO_URL),
        ([["1", URL], ["1", "tcp://127.0.0.1:81"]], "peer id must be unique"),
        ([["1", URL], ["2", URL]], "peer url must be unique"),
        ([["1"]], f"{PROTOCOL}\n\nnull !== 'tcp:'\n"),
    ],
)
def test_invalid_cluster_gets_error_text_of_package(value: object, message: str) -> None:
    assert read_malformed(value) == MalformedPeers("AssertionError", message)


@each_case(
    ("url", "message"),
    [
        ("ipc:///x", f"{PROTOCOL}\n\n'ipc:' !== 'tcp:'\n"),
        ("udp://127.0.0.1:80", f"{PROTOCOL}\n\n'udp:' !== 'tcp:'\n"),
        ("foo", f"{PROTOCOL}\n\nnull !== 'tcp:'\n"),
        ("127.0.0.1:80", f"{PROTOCOL}\n+ actual - expected\n\n+ '127.0.0.1:'\n- 'tcp:'"),
        ("inproc://x", f"{PROTOCOL}\n+ actual - expected\n\n+ 'inproc:'\n- 'tcp:'"),
        ("tcp://a:b@127.0.0.1:80", "peer url must have no auth\n\n'a:b' !== null\n"),
        ("tcp://127.0.0.1:80#x", "peer url must have no hash\n\n'#x' !== null\n"),
        ("tcp://127.0.0.1:80/", NO_PATH),
        ("tcp://127.0.0.1:80/x#y", NO_PATH),
        ("tcp://127.0.0.1:80?x", NO_PATH),
        ("tcp://", PORT),
        ("tcp://127.0.0.1", PORT),
        ("tcp://127.0.0.1:0", PORT),
        ("tcp://127.0.0.1:65536", PORT),
        ("tcp://127.0.0.1:99999999999999999", PORT),
        ("tcp://0.0.0.0:80", PLACEHOLDER),
        ("tcp://[::]:80", PLACEHOLDER),
        ("tcp://localhost:80", NO_IP),
        ("tcp://127.1:80", NO_IP),
        ("tcp://*:80", NO_IP),
        ("tcp://01.2.3.4:80", NO_IP),
    ],
)
def test_invalid_url_gets_error_text_of_package(url: str, message: str) -> None:
    assert read_malformed([["1", url]]) == MalformedPeers("AssertionError", message)


@pytest.mark.parametrize("url", ["tcp://[::1]:80", "tcp://[::ffff:1.2.3.4]:80", "tcp://127.0.0.1:080", URL])
def test_url_with_ip_address_and_port_is_accepted(url: str) -> None:
    check_url(url, DEFAULT_LIMITS)


@each_case(
    ("url", "message"),
    [
        ("TCP://127.0.0.1:80", PROTOCOL),
        ("tcp:127.0.0.1:80", NO_PATH),
        ("tcp://127.0.0.1:80 ", PORT),
        ("tcp://127.0.0.1:80\\", PORT),
        ("tcp://127.0.0.1:٨٠", PORT),
        ("tcp://[fe80::1%eth0]:80", NO_IP),
        ("tcp://[0::0]:80", PLACEHOLDER),
        ("tcp://[1.2.3.4]:80", NO_IP),
        ("tcp://::1:80", NO_IP),
    ],
)
def test_unusable_url_is_refused_unlike_in_package(url: str, message: str) -> None:
    assert read_malformed([["1", url]]).message.startswith(message)


def test_peers_beyond_own_limits_are_refused() -> None:
    many = [[str(number), f"tcp://127.0.0.1:{number}"] for number in range(1, 66)]
    assert len(read_peers(many[:64], DEFAULT_LIMITS)) == 64
    assert read_malformed(many).message == "at most 64 peers may be in a cluster"
    for peer_id in ("x" * 129, "a\nb", "\u202e"):
        assert read_malformed([[peer_id, URL]]).message == "peer id must be printable and have at most 128 bytes"
    assert read_malformed([["1", URL]], FrameLimits(max_url_bytes=17)).message == "peer url must have at most 17 bytes"


A, B, C = (Peer(name, f"tcp://127.0.0.1:{port}") for name, port in (("a", 1), ("b", 2), ("c", 3)))


@pytest.mark.parametrize("after", [(A,), (A, B, C), (C,), (B, A)])
def test_members_may_be_added_removed_or_reordered(after: tuple[Peer, ...]) -> None:
    check_change(after, (A, B))


@pytest.mark.parametrize("after", [(Peer("a", C.url),), (A, Peer("c", B.url)), (Peer("a", B.url), Peer("b", A.url))])
def test_url_may_not_move_to_another_member(after: tuple[Peer, ...]) -> None:
    with pytest.raises(PeersError, match="new peers must be consistent with current configuration"):
        check_change(after, (A, B))


def test_unchanged_members_are_refused() -> None:
    with pytest.raises(PeersError) as caught:
        check_change((A, B), (A, B))
    assert caught.value.malformed == MalformedPeers("Error", "no change in cluster membership")
