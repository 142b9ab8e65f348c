"""The handshake: both sides against each other, against the document, and against peers that must be refused."""

import re
from collections.abc import Callable
from random import Random
from typing import ClassVar

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from consensus.protocols.garlic_farm.wire.digest import (
    Algorithm,
    Authorization,
    Challenge,
    Credentials,
    parse_authorization,
    parse_challenge,
    response_to,
)
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.mapping import extensions_to_core
from consensus.protocols.garlic_farm.wire.nonces import LIFETIME_MS, NonceBook
from consensus.protocols.garlic_farm.wire.peers import Claim, ListedPeers, PeerDirectory, ProvenPeer
from consensus.protocols.garlic_farm.wire.proof import ConnectionRole, tls_channel
from consensus.protocols.garlic_farm.wire.upgrade import (
    ADMISSIONS_MAX,
    EXTENSION_SETS,
    HEAD_BYTES_MAX,
    Extension,
    Headers,
    Identity,
    accept_token,
    admission_headers,
    path_of,
)
from consensus.protocols.garlic_farm.wire.upgrade_client import (
    CACHE_MS,
    Challenged,
    Initiator,
    Session,
    Switched,
    UpgradeClient,
)
from consensus.protocols.garlic_farm.wire.upgrade_server import (
    Authenticator,
    RefusedUpgrade,
    Upgraded,
    UpgradeResult,
    UpgradeServer,
)
from tests.effort import each_case

PASSWORDS = {"router": "correct horse"}
HOUR_MS = 3_600_000
CHANNEL = tls_channel(bytes(32))
KEYS = {number: Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2, 3)}
KNOWN = {number: key.public_key().public_bytes_raw() for number, key in KEYS.items()}
ALICE, BOB, MALLORY = (ListedPeers(KEYS[number], KNOWN) for number in (1, 2, 3))

UNNAMED_PEER = ProvenPeer(ConnectionRole.SERVER, KNOWN[2], None)
"""The proven identity of a server, for a client that does not require a particular server."""


class Farm:
    """One server's handshakes, with a clock controlled by the test."""

    def __init__(self, cluster: str = "farm", identity: Identity | None = None, capacity: int = 4096) -> None:
        self.random = Random(1)
        self.now_ms = 1_000_000
        self.identity = identity or Identity("cluster-a", 2)
        self.nonces = NonceBook(b"secret", self.random.randbytes, capacity=capacity)
        self.authenticator = Authenticator(cluster, PASSWORDS.get, self.nonces, lambda: self.identity, peers=BOB)

    def answer(self, data: bytes) -> UpgradeResult:
        """Return the verdict on a connection that sends `data`."""
        verdict = UpgradeServer(self.authenticator, CHANNEL).receive(data, self.now_ms)
        assert verdict is not None
        return verdict


def caller(
    password: str = "correct horse",  # noqa: S107 - only for this test
    *,
    user: str = "router",
    cluster: str = "farm",
    version: str = "1",
    identity: Identity | None = None,
    offered: tuple[str, ...] = ("garlicfarm.prevote.v1",),
    peers: PeerDirectory | None = ALICE,
    role: ConnectionRole = ConnectionRole.SERVER,
) -> Initiator:
    ours = identity or Identity("cluster-a", 1)
    credentials = Credentials(user, password)
    return Initiator(
        cluster,
        lambda: (credentials,),
        lambda: ours,
        Random(2).randbytes,
        peers,
        role,
        version=version,
        offered=offered,
    )


def connect(farm: Farm, who: Initiator, session: Session, more: bytes = b"") -> Challenged | Switched:
    """Make one connection: the client's request to the server, and the server's reply."""
    client = UpgradeClient(who, session, "127.0.0.1:7669", farm.now_ms, channel=CHANNEL)
    verdict = farm.answer(client.request())
    outcome = client.receive(verdict.response + more)
    assert outcome is not None
    return outcome


def status(verdict: UpgradeResult) -> int:
    return int(verdict.response.split(b" ", 2)[1])


def authorized_request(farm: Farm, session: Session, who: Initiator | None = None) -> bytes:
    if session.challenge is None:
        assert isinstance(connect(farm, who or caller(), session), Challenged)
    return UpgradeClient(who or caller(), session, "h", farm.now_ms, channel=CHANNEL).request()


def test_first_request_has_documented_headers() -> None:
    request = UpgradeClient(caller(), Session(), "10.0.0.1:7669", 0, channel=CHANNEL).request().decode()
    assert request.splitlines()[0] == "GET /GarlicFarm/farm/1/websocket HTTP/1.1"
    assert "Host: 10.0.0.1:7669\r\n" in request
    assert "Cache-Control: no-cache\r\n" in request
    assert "Connection: close\r\n" in request
    assert "Authorization" not in request
    assert request.endswith("\r\n\r\n")


def test_request_1_gets_challenge_and_request_2_gets_101() -> None:
    farm, session = Farm(), Session()
    first = farm.answer(UpgradeClient(caller(), session, "h", farm.now_ms, channel=CHANNEL).request())
    assert isinstance(first, RefusedUpgrade)
    assert status(first) == 401
    assert b"\r\nConnection: close\r\n" in first.response
    assert first.response.count(b"WWW-Authenticate: Digest ") == 2
    assert connect(farm, caller(), session) == Challenged()
    switched = connect(farm, caller(), session)
    assert switched == Switched(b"", farm.identity, frozenset({Extension.PRE_VOTE}), UNNAMED_PEER)


def test_second_request_and_reply_have_documented_headers() -> None:
    farm, session = Farm(), Session()
    request = authorized_request(farm, session).decode()
    assert "Connection: keep-alive, Upgrade\r\n" in request
    assert "Upgrade: websocket\r\n" in request
    assert "Sec-WebSocket-Version: 13\r\n" in request
    assert 'uri="/GarlicFarm/farm/1/websocket"' in request
    verdict = farm.answer(request.encode())
    assert isinstance(verdict, Upgraded)
    lines = verdict.response.decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 101 Switching Protocols"
    assert {"Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Protocol: garlicfarm.prevote.v1"} <= set(lines)
    key = re.search("Sec-WebSocket-Key: (.*)\r\n", request)
    assert key is not None
    assert f"Sec-WebSocket-Accept: {accept_token(key[1])}" in lines
    assert verdict.user == "router"
    assert verdict.peer == Identity("cluster-a", 1)


def test_accept_token_equals_rfc_6455_example() -> None:
    assert accept_token("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


def test_md5_response_equals_rfc_2617_example() -> None:
    challenge = Challenge("testrealm@host.com", "dcd98b7102dd2f0e8b11d0f600bfb0c093", Algorithm.MD5)
    credentials = Credentials("Mufasa", "Circle Of Life")
    found = response_to(challenge, credentials, ("GET", "/dir/index.html"), 1, "0a4f113b")
    assert found == "6629fae49393a05397450978507c4ef1"


def test_sha_256_response_equals_rfc_7616_example() -> None:
    nonce, client_nonce = "7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v", "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ"
    challenge = Challenge("http-auth@example.org", nonce, Algorithm.SHA_256)
    credentials = Credentials("Mufasa", "Circle of Life")
    found = response_to(challenge, credentials, ("GET", "/dir/index.html"), 1, client_nonce)
    assert found == "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1"


def test_bytes_after_heads_belong_to_raft_on_both_sides() -> None:
    farm, session = Farm(), Session()
    verdict = farm.answer(authorized_request(farm, session) + b"raft from the client")
    assert isinstance(verdict, Upgraded)
    assert verdict.trailing == b"raft from the client"
    switched = connect(farm, caller(), session, b"raft from the server")
    assert isinstance(switched, Switched)
    assert switched.trailing == b"raft from the server"


def test_heads_may_arrive_byte_by_byte() -> None:
    farm, session = Farm(), Session()
    request = authorized_request(farm, session) + b"raft"
    server = UpgradeServer(farm.authenticator, CHANNEL)
    verdicts = [server.receive(bytes((byte,)), farm.now_ms) for byte in request[:-4]]
    assert verdicts[:-1] == [None] * (len(request) - 5)
    assert isinstance(verdicts[-1], Upgraded)


def test_later_connections_skip_request_1_for_an_hour() -> None:
    farm, session = Farm(), Session()
    connect(farm, caller(), session)
    for _ in range(6):
        assert isinstance(connect(farm, caller(), session), Switched)
        farm.now_ms += HOUR_MS // 6
    assert CACHE_MS > HOUR_MS
    farm.now_ms += CACHE_MS
    assert b"Authorization" not in UpgradeClient(caller(), session, "h", farm.now_ms, channel=CHANNEL).request()


def test_expired_nonce_is_stale_and_replaced() -> None:
    farm, session = Farm(), Session()
    request = authorized_request(farm, session)
    farm.now_ms += LIFETIME_MS
    verdict = farm.answer(request)
    assert status(verdict) == 401
    assert isinstance(verdict, RefusedUpgrade)
    assert b"stale=true" in verdict.response
    assert verdict.fault is None, "a peer that returns after hours is not an incident"
    session.learned_ms = farm.now_ms
    client = UpgradeClient(caller(), session, "h", farm.now_ms, channel=CHANNEL)
    client.request()
    assert client.receive(verdict.response) == Challenged()
    assert isinstance(connect(farm, caller(), session), Switched)


def test_restarted_server_requires_only_new_nonce() -> None:
    session = Session()
    connect(first := Farm(), caller(), session)
    restarted = Farm()
    restarted.nonces = NonceBook(b"another secret", restarted.random.randbytes)
    restarted.authenticator = Authenticator(
        "farm", PASSWORDS.get, restarted.nonces, lambda: restarted.identity, peers=BOB
    )
    verdict = restarted.answer(authorized_request(first, session))
    assert isinstance(verdict, RefusedUpgrade)
    assert verdict.fault is None, "a restart is not an incident"
    assert connect(restarted, caller(), session) == Challenged()
    assert isinstance(connect(restarted, caller(), session), Switched)


def test_replayed_request_is_refused() -> None:
    farm, session = Farm(), Session()
    request = authorized_request(farm, session)
    assert isinstance(farm.answer(request), Upgraded)
    again = farm.answer(request)
    assert isinstance(again, RefusedUpgrade)
    assert status(again) == 401
    assert again.fault is Fault.REPLAYED
    assert "a repeated request" in again.text


def test_lower_nonce_count_is_refused() -> None:
    farm, session = Farm(), Session()
    first, second = authorized_request(farm, session), authorized_request(farm, session)
    assert isinstance(farm.answer(second), Upgraded)
    assert isinstance(farm.answer(first), RefusedUpgrade)


def test_dropped_nonces_stay_invalid() -> None:
    farm, recorded = Farm(capacity=8), []
    for _ in range(40):
        farm.now_ms += 1
        session = Session()
        request = authorized_request(farm, session)
        assert isinstance(farm.answer(request), Upgraded)
        recorded.append(request)
        assert len(farm.nonces._highest_count) <= 8
    assert all(isinstance(farm.answer(request), RefusedUpgrade) for request in recorded)


def test_challenge_does_not_use_memory() -> None:
    farm = Farm()
    for _ in range(1000):
        connect(farm, caller(), Session())
    assert len(farm.nonces._highest_count) == 0


def test_wrong_password_is_refused_with_remedy() -> None:
    farm, session = Farm(), Session()
    connect(farm, caller("wrong"), session)
    with pytest.raises(GarlicFarmError, match="same farm key file") as refusal:
        connect(farm, caller("wrong"), session)
    assert refusal.value.fault is Fault.WRONG_CREDENTIALS
    assert session.challenge is None
    assert "wrong" not in repr(Credentials("router", "wrong"))


@pytest.mark.parametrize(
    "who", [caller("wrong"), caller(user="unknown"), caller("", user="unknown")], ids=["password", "user", "empty"]
)
def test_wrong_credentials_are_reported_as_fault(who: Initiator) -> None:
    farm, session = Farm(), Session()
    verdict = farm.answer(authorized_request(farm, session, who))
    assert isinstance(verdict, RefusedUpgrade)
    assert status(verdict) == 401
    assert verdict.fault is Fault.WRONG_CREDENTIALS
    assert b"stale" not in verdict.response


@pytest.mark.parametrize("who", [caller(cluster="other"), caller(version="2")], ids=["cluster", "version"])
def test_wrong_cluster_name_or_version_gets_404(who: Initiator) -> None:
    with pytest.raises(GarlicFarmError, match="another cluster or another version") as refusal:
        connect(Farm(), who, Session())
    assert refusal.value.fault is Fault.WRONG_PATH


@each_case(
    "line",
    [
        "GET / HTTP/1.1",
        "GET /GarlicFarm HTTP/1.1",
        "GET /GarlicFarm/farm/1/websocket/ HTTP/1.1",
        "GET /GarlicFarm/farm/1/websocket?x HTTP/1.1",
        "GET /garlicfarm/farm/1/websocket HTTP/1.1",
        "POST /GarlicFarm/farm/1/websocket HTTP/1.1",
    ],
)
def test_other_path_gets_one_fixed_404(line: str) -> None:
    verdict = Farm().answer(f"{line}\r\nHost: h\r\n\r\n".encode())
    expected = (
        b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 10\r\nConnection: close\r\n\r\n"
        b"Not Found\n"
    )
    assert verdict.response == expected


def test_wrong_method_is_reported_as_wrong_method() -> None:
    verdict = Farm().answer(b"POST /GarlicFarm/farm/1/websocket HTTP/1.1\r\nHost: h\r\n\r\n")
    assert isinstance(verdict, RefusedUpgrade)
    assert verdict.fault is Fault.WRONG_METHOD
    assert verdict.text == "requested with the method 'POST', but a handshake begins with GET"


def test_challenge_does_not_name_product() -> None:
    verdict = Farm().answer(b"GET /GarlicFarm/farm/1/websocket HTTP/1.1\r\nHost: h\r\n\r\n")
    assert not re.search(b"garlic|raft|farm|i2p", verdict.response, re.IGNORECASE)


def test_member_of_another_cluster_is_refused_by_both_sides() -> None:
    farm, session = Farm(), Session()
    other = caller(identity=Identity("cluster-b", 1))
    verdict = farm.answer(authorized_request(farm, session, other))
    assert isinstance(verdict, RefusedUpgrade)
    assert status(verdict) == 409
    assert verdict.fault is Fault.WRONG_CLUSTER
    with pytest.raises(GarlicFarmError, match="belongs to cluster cluster-a, this one to cluster-b") as refusal:
        connect(farm, other, session)
    assert refusal.value.fault is Fault.WRONG_CLUSTER
    client = UpgradeClient(other, session, "h", farm.now_ms, channel=CHANNEL)
    client.request()
    with pytest.raises(GarlicFarmError, match="cluster-a"):
        client.receive(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nX-Garlic-Cluster: cluster-a\r\n\r\n")


def test_peer_without_cluster_may_connect() -> None:
    farm, session = Farm(), Session()
    newcomer = caller(identity=Identity(None, None))
    connect(farm, newcomer, session)
    switched = connect(farm, newcomer, session)
    assert isinstance(switched, Switched)
    assert switched.peer == Identity("cluster-a", 2)


def test_handshake_exchanges_lease_durations() -> None:
    farm, session = Farm(identity=Identity("cluster-a", 2, 1_000)), Session()
    client = caller(identity=Identity("cluster-a", 1, 900))
    connect(farm, client, session)
    switched = connect(farm, client, session)
    assert isinstance(switched, Switched)
    assert switched.peer == Identity("cluster-a", 2, 1_000)
    assert extensions_to_core(frozenset(Extension), switched.peer.lease_ms).lease_ms == 1_000
    assert extensions_to_core(frozenset({Extension.PRE_VOTE}), 1_000).lease_ms is None, "it cannot receive leases"


@pytest.mark.parametrize("promise", ["0", "-1", "1e3", "1234567890"])
def test_invalid_lease_header_is_malformed(promise: str) -> None:
    headers = Headers([(b"X-Garlic-Lease", promise.encode())])
    with pytest.raises(GarlicFarmError, match="X-Garlic-Lease"):
        headers.identity()


@pytest.mark.parametrize("offered", [(), ("chat",)])
def test_handshake_without_common_extension_uses_plain_form(offered: tuple[str, ...]) -> None:
    farm, session, who = Farm(), Session(), caller(offered=offered)
    connect(farm, who, session)
    switched = connect(farm, who, session)
    assert isinstance(switched, Switched)
    assert switched.extensions == frozenset()


def test_server_chooses_first_known_extension() -> None:
    farm, session, who = Farm(), Session(), caller(offered=("garlicfarm.future.v9", "garlicfarm.prevote.v1"))
    connect(farm, who, session)
    switched = connect(farm, who, session)
    assert isinstance(switched, Switched)
    assert switched.extensions == {Extension.PRE_VOTE}


@pytest.mark.parametrize(
    ("offered", "agreed"),
    [(tuple(EXTENSION_SETS), frozenset(Extension)), (("garlicfarm.prevote.v1",), frozenset({Extension.PRE_VOTE}))],
)
def test_servers_agree_on_common_extensions(offered: tuple[str, ...], agreed: frozenset[Extension]) -> None:
    farm, session, who = Farm(), Session(), caller(offered=offered)
    connect(farm, who, session)
    switched = connect(farm, who, session)
    assert isinstance(switched, Switched)
    assert switched.extensions == agreed


def test_proxied_request_is_accepted() -> None:
    farm, session = Farm(), Session()
    line, *headers = authorized_request(farm, session).decode().split("\r\n")[:-2]
    headers = [header for header in reversed(headers) if not header.startswith("Host")]
    line = line.replace("GET /", "GET http://abc.b32.i2p/")
    request = "\r\n".join([line, "Host: abc.b32.i2p", "X-I2P-DestHash: x", "User-Agent: MYOB", *headers, "", ""])
    assert isinstance(farm.answer(request.encode()), Upgraded)


@each_case(
    ("old", "new", "expected"),
    [
        ("Upgrade: websocket\r\n", "", 426),
        ("keep-alive, Upgrade", "keep-alive", 426),
        ("Sec-WebSocket-Version: 13", "Sec-WebSocket-Version: 8", 400),
        ("Sec-WebSocket-Key: ", "Sec-WebSocket-Key: x", 400),
        ("Host: h\r\n", "Host: h\r\nContent-Length: 5\r\n", 400),
        ("Host: h\r\n", "Host: h\r\nTransfer-Encoding: chunked\r\n", 400),
        ("Host: h\r\n", "Host: h\r\nAuthorization: Digest x=y\r\n", 400),
        ("X-Garlic-Server: 1", "X-Garlic-Server: -1", 400),
        ("X-Garlic-Server: 1", "X-Garlic-Server: 4294967296", 400),
        (" HTTP/1.1", " HTTP/1.0", 400),
        ("qop=auth", "qop=auth-int", 401),
        ("qop=auth, ", "", 401),
        ("Authorization: Digest", "Authorization: Basic", 401),
        ("nc=00000001", "nc=1", 400),
        ('realm="private"', 'realm="public"', 401),
        ("nc=00000001", "nc=00000002", 401),
        ('/websocket", algorithm', '/other", algorithm', 401),
    ],
)
def test_malformed_request_2_is_refused(old: str, new: str, expected: int) -> None:
    farm, session = Farm(), Session()
    request = authorized_request(farm, session).decode()
    assert old in request
    assert status(farm.answer(request.replace(old, new, 1).encode())) == expected


def test_endless_request_head_is_refused() -> None:
    farm = Farm()
    server = UpgradeServer(farm.authenticator, CHANNEL)
    assert server.receive(b"GET / HTTP/1.1\r\n", farm.now_ms) is None
    for number in range(20_000):
        verdict = server.receive(b"X-%d: %d\r\n" % (number, number), farm.now_ms)
        if verdict is not None:
            break
    assert isinstance(verdict, RefusedUpgrade)
    assert number * 10 < HEAD_BYTES_MAX
    whole = b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"x" * HEAD_BYTES_MAX + b"\r\n\r\n"
    assert status(farm.answer(whole)) == 431


def test_endless_response_head_is_refused() -> None:
    client = UpgradeClient(caller(), Session(), "h", 0, channel=CHANNEL)
    client.request()
    client.receive(b"HTTP/1.1 401 No\r\n")
    for _ in range(HEAD_BYTES_MAX // 100 - 4):
        client.receive(b"X: " + b"x" * 95 + b"\r\n")
    with pytest.raises(GarlicFarmError, match="not HTTP"):
        client.receive(b"X: " + b"x" * 1000 + b"\r\n")


@each_case(
    ("answer", "fault"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", Fault.REFUSED_UPGRADE),
        (b"HTTP/1.1 401 No\r\nWWW-Authenticate: Basic realm=x\r\n\r\n", Fault.REFUSED_UPGRADE),
        (b"HTTP/1.1 401 No\r\nWWW-Authenticate: Digest realm=x\r\n\r\n", Fault.REFUSED_UPGRADE),
        (b'HTTP/1.1 401 No\r\nWWW-Authenticate: Digest qop="auth"\r\n\r\n', Fault.MALFORMED),
        (b"HTTP/1.1 101 Go\r\nUpgrade: websocket\r\n\r\n", Fault.MALFORMED),
        (b"SSH-2.0-OpenSSH\r\n\r\n", Fault.MALFORMED),
        (b"", Fault.MALFORMED),
    ],
)
def test_invalid_response_raises_fault(answer: bytes, fault: Fault) -> None:
    client = UpgradeClient(caller(), Session(), "h", 0, channel=CHANNEL)
    client.request()
    with pytest.raises(GarlicFarmError) as refusal:
        client.receive(answer)
    assert refusal.value.fault is fault


def test_client_chooses_sha_256_over_md5() -> None:
    farm, session = Farm(), Session()
    connect(farm, caller(), session)
    assert session.challenge is not None
    assert session.challenge.algorithm is Algorithm.SHA_256


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_quoted_headers_round_trip(algorithm: Algorithm) -> None:
    challenge = Challenge('a "realm" \\', "abc", algorithm, "op,aque", stale=True)
    assert parse_challenge(challenge.header()) == challenge
    answer = Authorization('us"er\\', "r, x=y", "n", "/p", 255, "c", algorithm, "ab" * 16, 'o"')
    assert parse_authorization(answer.header()) == answer


def test_cluster_name_unfit_for_path_is_refused() -> None:
    for name in ("", "a/b", "a b", "ä", "x" * 65):
        with pytest.raises(GarlicFarmError, match="cluster name"):
            path_of(name)


# -- identity ----------------------------------------------------------------------------------------------------------


def handshake(
    farm: Farm, who: Initiator, called: int | None = 2, channel: str = CHANNEL
) -> tuple[bytes, UpgradeClient]:
    """Return request 2 of a client that calls server `called` over `channel`, and the client."""
    session = Session()
    connect(farm, who, session)
    client = UpgradeClient(who, session, "h", farm.now_ms, channel=channel, called=called)
    return client.request(), client


def refusal_of(farm: Farm, request: bytes) -> RefusedUpgrade:
    verdict = farm.answer(request)
    assert isinstance(verdict, RefusedUpgrade)
    assert status(verdict) == 403
    assert verdict.fault is not None
    assert f"X-Garlic-Refusal: {verdict.fault.value}\r\n".encode() in verdict.response
    return verdict


def without_header(request: bytes, header: bytes) -> bytes:
    return b"\r\n".join(line for line in request.split(b"\r\n") if not line.startswith(header))


def test_proven_identity_has_id_and_role_on_both_sides() -> None:
    farm = Farm()
    request, client = handshake(farm, caller())
    verdict = farm.answer(request)
    assert isinstance(verdict, Upgraded)
    assert verdict.proven == ProvenPeer(ConnectionRole.SERVER, KNOWN[1], 1)
    switched = client.receive(verdict.response)
    assert isinstance(switched, Switched)
    assert switched.proven == ProvenPeer(ConnectionRole.SERVER, KNOWN[2], 2)


def test_peer_without_claim_is_accepted_without_identity() -> None:
    farm = Farm()
    request, _ = handshake(farm, caller(identity=Identity("cluster-a"), peers=None))
    verdict = farm.answer(request)
    assert isinstance(verdict, Upgraded)
    assert verdict.proven is None


def test_proven_client_is_not_a_server() -> None:
    farm = Farm()
    verdict = farm.answer(handshake(farm, caller(role=ConnectionRole.CLIENT))[0])
    assert isinstance(verdict, Upgraded)
    assert verdict.proven is not None
    assert (verdict.proven.server_id, verdict.proven.is_server) == (1, False)


@pytest.mark.parametrize("claimed", [1, 2, 77])
def test_claimed_id_without_proof_is_refused(claimed: int) -> None:
    farm = Farm()
    verdict = refusal_of(farm, handshake(farm, caller(identity=Identity("cluster-a", claimed), peers=None))[0])
    assert verdict.fault is Fault.UNPROVEN
    assert f"a peer that claims to be server {claimed} did not prove its identity" in verdict.text


@pytest.mark.parametrize("claimed", [1, 2, 77])
def test_claimed_id_with_key_of_another_server_is_refused(claimed: int) -> None:
    farm = Farm()
    verdict = refusal_of(farm, handshake(farm, caller(identity=Identity("cluster-a", claimed), peers=MALLORY))[0])
    assert verdict.fault is Fault.UNKNOWN_IDENTITY


@each_case(
    ("old", "new"),
    [
        (b"X-Garlic-Server: 1", b"X-Garlic-Server: 3"),
        (b"X-Garlic-Peer: 2\r\n", b""),
        (b"X-Garlic-Cluster: cluster-a\r\n", b""),
        (b"garlicfarm.prevote.v1", b"garlicfarm.raft.v1"),
        (b"X-Garlic-Server: 1\r\n", b"X-Garlic-Server: 1\r\nX-Garlic-Lease: 400\r\n"),
        (b"X-Garlic-Server: 1\r\n", b"X-Garlic-Server: 1\r\nX-Garlic-Introduction: other\r\n"),
        (b"Proof: 1 server", b"Proof: 1 client"),
    ],
)
def test_proven_request_changed_in_transit_is_refused(old: bytes, new: bytes) -> None:
    farm = Farm()
    request, _ = handshake(farm, caller())
    assert old in request
    assert refusal_of(farm, request.replace(old, new, 1)).fault is Fault.UNPROVEN


def test_relayed_proof_is_refused() -> None:
    """The relay presents its own certificate and forwards the challenge and the reply."""
    farm = Farm()
    request, client = handshake(farm, caller(), channel=tls_channel(b"m" * 32))
    verdict = refusal_of(farm, request)
    assert verdict.fault is Fault.UNPROVEN
    assert "is not valid for this connection" in verdict.text
    with pytest.raises(GarlicFarmError, match="an attacker may relay the connection"):
        client.receive(verdict.response)


def test_relay_that_removes_client_proof_is_detected() -> None:
    """The server then accepts a peer without an identity, and the client refuses the server's proof."""
    farm = Farm()
    request, client = handshake(farm, caller(), channel=tls_channel(b"m" * 32))
    verdict = farm.answer(without_header(without_header(request, b"X-Garlic-Proof"), b"X-Garlic-Server"))
    assert isinstance(verdict, Upgraded)
    assert verdict.proven is None
    with pytest.raises(GarlicFarmError, match="relays") as failure:
        client.receive(verdict.response)
    assert failure.value.fault is Fault.UNPROVEN


def test_client_of_another_server_is_refused() -> None:
    farm = Farm()
    request, client = handshake(farm, caller(), called=3)
    verdict = refusal_of(farm, request)
    assert verdict.fault is Fault.WRONG_SERVER
    with pytest.raises(GarlicFarmError, match="another server than server 3 listens") as failure:
        client.receive(verdict.response)
    assert failure.value.fault is Fault.WRONG_SERVER


@each_case(
    ("change", "fault"),
    [
        (lambda answer: without_header(answer, b"X-Garlic-Proof"), Fault.UNPROVEN),
        (lambda answer: answer.replace(b"X-Garlic-Server: 2", b"X-Garlic-Server: 3"), Fault.WRONG_SERVER),
        (lambda answer: answer.replace(b"X-Garlic-Server: 2\r\n", b""), Fault.BUSY),
        (lambda answer: answer.replace(b"X-Garlic-Cluster: cluster-a\r\n", b""), Fault.UNPROVEN),
        (lambda answer: answer.replace(b"Sec-WebSocket-Protocol: garlicfarm.prevote.v1\r\n", b""), Fault.UNPROVEN),
        (lambda answer: answer.replace(b"Proof: 1 server", b"Proof: 1 client"), Fault.UNPROVEN),
    ],
)
def test_reply_without_proof_of_called_server_is_refused(change: Callable[[bytes], bytes], fault: Fault) -> None:
    farm = Farm()
    request, client = handshake(farm, caller())
    answer = farm.answer(request).response
    with pytest.raises(GarlicFarmError) as failure:
        client.receive(change(answer))
    assert failure.value.fault is fault


def test_reply_signed_by_another_identity_is_refused() -> None:
    farm = Farm()
    farm.authenticator.peers = MALLORY
    request, client = handshake(farm, caller(peers=ALICE))
    with pytest.raises(GarlicFarmError, match="is not the listed key of server 2") as failure:
        client.receive(farm.answer(request).response)
    assert failure.value.fault is Fault.UNKNOWN_IDENTITY


def test_admission_headers_are_limited_in_both_directions() -> None:
    shown = (b"nearest", b"x" * 700)

    class Shown(ListedPeers):
        judged: ClassVar[list[Claim]] = []

        def admissions(self) -> tuple[bytes, ...]:
            return shown

        def judge(self, claim: Claim) -> None:
            self.judged.append(claim)

    farm = Farm()
    farm.authenticator.peers = Shown(KEYS[2], KNOWN)
    request, client = handshake(farm, caller(peers=Shown(KEYS[1], KNOWN)))
    client.receive(farm.answer(request).response)
    assert [(each.server_id, each.admissions) for each in Shown.judged[-2:]] == [(1, shown), (2, shown)]
    line = b"X-Garlic-Admission: " + b"A" * 1_025
    for more in (line, b"X-Garlic-Admission: bad*\r\n", b"\r\n".join([b"X-Garlic-Admission: AAAA"] * 17)):
        request, _ = handshake(farm, caller())
        verdict = farm.answer(request.replace(b"X-Garlic-Peer", more.strip() + b"\r\nX-Garlic-Peer", 1))
        assert (status(verdict), isinstance(verdict, RefusedUpgrade) and verdict.fault) == (400, Fault.MALFORMED)
    many = [word for _, word in admission_headers([b"x"] * 40 + [b"y" * 4_000])]
    assert len(many) == ADMISSIONS_MAX
