"""Targets of the Garlic Farm fuzz: each makes inputs and checks them.

    upgrade    the server's side of the handshake, the client's, a proxy's CONNECT, introductions of servers
    requests   complete requests, their reader on a stream, log packs (mutated inside; bombs)
    replies    complete replies and their reader
    json       application entries

`check` returns the name of the outcome, or raises `FuzzError` or an unexpected error of a decoder. An input is bytes;
the caller prints a failing input as hexadecimal.
"""

import base64
import itertools
import json
import zlib
from pathlib import Path
from random import Random
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from bridge.core.log.fields import ENTRY_LIMIT_BYTES
from bridge.core.log.records import (
    Admission,
    Clock,
    CostFactor,
    Exclusion,
    Factors,
    Force,
    Foreign,
    Publication,
    Record,
)
from bridge.node.membership.introductions import introductions_in
from bridge.wire.log.entries import decode, encode
from consensus.core.model import Entry
from consensus.protocols.garlic_farm.wire import messages as wire
from consensus.protocols.garlic_farm.wire.codec import (
    ReplyReader,
    RequestReader,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from consensus.protocols.garlic_farm.wire.digest import Credentials
from consensus.protocols.garlic_farm.wire.errors import GarlicFarmError
from consensus.protocols.garlic_farm.wire.log_pack import encode_log_pack
from consensus.protocols.garlic_farm.wire.nonces import NonceBook
from consensus.protocols.garlic_farm.wire.peers import ListedPeers
from consensus.protocols.garlic_farm.wire.proxy import ConnectClient, ProxyAuthentication, Via
from consensus.protocols.garlic_farm.wire.upgrade import Identity
from consensus.protocols.garlic_farm.wire.upgrade_client import Initiator, Session, UpgradeClient
from consensus.protocols.garlic_farm.wire.upgrade_server import Authenticator, Upgraded, UpgradeServer
from consensus.protocols.garlic_farm.wire.values import ClusterServer, Configuration, LogEntry, LogPack
from gossip.core.member import Address, Incarnation, NodeInfo
from gossip.wire.codec import encode_node_info
from gossip.wire.identity import node_id_of, sign
from tests.node.garlic_farm_stage import CHANNEL, SERVER_KEYS, key_of, peers_of
from tests.simulation.fuzzing import FuzzError, Subject, mutated
from tests.wire.test_application import FULL

VECTORS: Final = Path(__file__).parents[1] / "vectors" / "garlic-farm.json"
CREDENTIALS: Final = Credentials("router", "correct horse")
BOMB_BYTES: Final = 32 * 2**20
BOMB_SHARE: Final = 0.0005
TEXT_PIECES: Final = (
    b"\r\n", b"\n", b":", b" ", b",", b'"', b"\\", b"=", b"\0", b"\xff", b"%s" * 20, b"9" * 400, b"a" * 20_000,
    b"HTTP/1.1 ", b"GET ", b"Connection: Upgrade\r\n", b"Content-Length: 99999999999999999999\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Authorization: Digest \r\n", b"X-Garlic-Server: 2147483648\r\n",
    b"X-Garlic-Peer: 2\r\n", b"X-Garlic-Proof: 1 server ", b"X-Garlic-Admission: ",
    b"X-Garlic-Introduction: ", b"qop=auth", b"nc=00000001", b"stale=true", b"101", b"401", b"407",
)  # fmt: skip
JSON_PIECES: Final = (
    b"{", b"}", b"[", b"]", b'"', b":", b",", b"null", b"true", b"-1", b"1e999", b"0.1", b"9" * 40, b"\\ud800",
    b"\\u0000", b"\xff", b"\xef\xbb\xbf", b'"router"', b'"clock"', b'"publication"', b'"request"', b"[" * 300,
    b" " * 70_000, b'"id":1,"id":2', b"NaN",
)  # fmt: skip
NUMBERS: Final = (b"\0", b"\x7f", b"\x80", b"\xff", b"\xff" * 4, bytes(4), b"\x7f" + b"\xff" * 7, b"\xff" * 8)


class UpgradeTarget(Subject[bytes]):
    """Both sides of the handshake, and the proxy's."""

    name = "upgrade"
    expected = frozenset(
        {"server none", "server refused", "server upgraded", "client none", "client refused", "client Challenged",
         "client Switched", "proxy none", "proxy refused", "proxy RetryConnect", "proxy TunnelOpen", "introductions"}
    )  # fmt: skip

    def __init__(self) -> None:
        self._random = Random(5)
        self._now_ms = 1_000
        nonces = NonceBook(b"secret", self._random.randbytes, capacity=64)
        passwords = {CREDENTIALS.user: CREDENTIALS.password}
        self._introduction = _make_introduction()
        own_identity = Identity("cluster-a", 2, 1_000, (self._introduction,))
        self._authenticator = Authenticator(
            "farm", passwords.get, nonces, lambda: own_identity, peers=ListedPeers(key_of(2), SERVER_KEYS)
        )
        peer_identity = Identity("cluster-a", 1, None, (self._introduction, self._introduction))
        self._caller = Initiator(
            "farm", lambda: (CREDENTIALS,), lambda: peer_identity, self._random.randbytes, peers_of(1)
        )
        self._without_directory = replace(self._caller, peers=None)
        """An initiator that does not check proofs, because the proof of a recorded response is never valid again."""
        self._session = Session()
        self._accepted: set[str] = set()
        self._challenge = self._server_answer(self._client(Session()).request())
        self._client_of_challenge()
        stale = self._challenge.replace(b'nonce="', b'stale=true, nonce="')
        not_found = self._server_answer(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        proxy = b'HTTP/1.1 407 P\r\nProxy-Authenticate: Digest realm="p", nonce="n", qop="auth"\r\n\r\n'
        basic = b'HTTP/1.1 407 P\r\nProxy-Authenticate: Basic realm="p"\r\n\r\n'
        self._switched = self._server_answer(self._genuine(Random(1)))
        established = b"HTTP/1.1 200 Connection established\r\n\r\n"
        self._answers = [self._challenge, stale, not_found, proxy, basic, self._switched, established,
                         b"HTTP/1.1 503 S\r\n\r\n", b"HTTP/1.1 409 C\r\nX-Garlic-Cluster: b\r\n\r\n"]  # fmt: skip

    def make(self, random: Random) -> bytes:
        """Return one input; its first byte is the side that receives it."""
        side = random.choice(b"sscpi")
        if side == ord("s"):
            whole = self._genuine(random)
            return bytes([side]) + mutated(whole, random, [whole, *self._answers], TEXT_PIECES)
        if side == ord("i"):
            word = self._introduction.encode()
            return bytes([side]) + mutated(word, random, [word], (b"A", b"-", b"_", b"=", b"//", b"gk"))
        answer = random.choice(self._answers)
        return bytes([side]) + mutated(answer, random, self._answers, TEXT_PIECES)

    def check(self, data: bytes, random: Random) -> str:
        """Check that only a client with a proof of the password is admitted, and each proof only once."""
        side, data = data[0], data[1:]
        if side == ord("s"):
            return f"server {self._check_server(data, random)}"
        if side == ord("i"):
            introductions_in(Identity(introductions=(data.decode("latin-1"), self._introduction)))
            return "introductions"
        caller = self._caller if random.random() < 0.5 else self._without_directory
        client: UpgradeClient | ConnectClient = self._client(self._session, caller, proxied=random.random() < 0.3)
        if side == ord("p"):
            authentication = ProxyAuthentication(CREDENTIALS, random.randbytes)
            client = ConnectClient("name.b32.i2p:7669", authentication)
        client.request()
        side_name = "client" if side == ord("c") else "proxy"
        try:
            for piece in arrivals(data, random):
                outcome = client.receive(piece)
                if outcome is not None:
                    return f"{side_name} {type(outcome).__name__}"
        except GarlicFarmError:
            return f"{side_name} refused"
        finally:
            if self._session.challenge is None or self._session.challenge.nonce not in self._challenge.decode():
                self._client_of_challenge()
        return f"{side_name} none"

    def _check_server(self, data: bytes, random: Random) -> str:
        server = UpgradeServer(self._authenticator, CHANNEL)
        self._now_ms += 1
        for piece in arrivals(data, random):
            verdict = server.receive(piece, self._now_ms)
            if isinstance(verdict, Upgraded):
                return self._admitted(data, verdict)
            if verdict is not None:
                return "refused"
        return "none"

    def _admitted(self, data: bytes, verdict: Upgraded) -> str:
        # Quoted pairs and capital digits are other spellings of the same proof.
        text = data.decode("latin-1").replace("\\", "").lower()
        proof = next((each for each in self._accepted if each in text), None)
        if proof is None:
            raise FuzzError("a client was admitted without a proof of the password, or twice with the same proof")
        self._accepted.discard(proof)
        shown = None if verdict.proven is None else verdict.proven.server_id
        if verdict.peer.server_id != shown:
            raise FuzzError(f"a peer was accepted as server {verdict.peer.server_id} and has proven to be {shown}")
        return "upgraded"

    def _genuine(self, random: Random) -> bytes:
        if not self._session.usable(0):
            self._client_of_challenge()
        request = self._client(self._session, proxied=random.random() < 0.2).request()
        text = request.decode()
        at = text.index('response="') + 10
        if len(self._accepted) > 4_096:
            self._accepted.clear()
            self._client_of_challenge()
            return self._genuine(random)
        self._accepted.add(text[at : text.index('"', at)])
        return request

    def _client(self, session: Session, caller: Initiator | None = None, *, proxied: bool = False) -> UpgradeClient:
        via = Via("h:7669", ProxyAuthentication(None, self._random.randbytes)) if proxied else None
        return UpgradeClient(caller or self._caller, session, "h:7669", 0, via=via, channel=CHANNEL)

    def _client_of_challenge(self) -> None:
        """Start a session that begins with request 2, with a nonce from the server."""
        self._challenge = self._server_answer(self._client(Session()).request())
        self._session = Session()
        client = self._client(self._session)
        client.request()
        client.receive(self._challenge)

    def _server_answer(self, request: bytes) -> bytes:
        verdict = UpgradeServer(self._authenticator, CHANNEL).receive(request, self._now_ms)
        if verdict is None:
            raise FuzzError("a whole request had no answer")
        return verdict.response


class RequestTarget(Subject[bytes]):
    """Requests of every type."""

    name = "requests"
    memory_growth_limit_mib = 48  # a bomb is inflated up to its limit
    expected = frozenset({"refused", "decoded", "refused bomb", "refused pack", "decoded pack"})

    def __init__(self) -> None:
        recorded = json.loads(VECTORS.read_text())["messages"]
        self._known = [bytes.fromhex(each["hex"]) for each in recorded if each["msg"].endswith("Request")]
        server = ClusterServer(4, "tcp://name.b32.i2p:7669")
        extended = Configuration(7, 5, (server, server), (server,), (server,))
        entry = Entry.command(3, b'{"a": 1}')
        self._pack = LogPack(100, (Entry.command(3, b"x" * 50), LogEntry(4, extended)) * 3)
        self._known += [
            encode_request(each)
            for each in (
                wire.AppendEntriesRequest(
                    source=1,
                    destination=2,
                    term=3,
                    last_log_term=4,
                    last_log_index=5,
                    commit_index=6,
                    entries=(entry, LogEntry(3, extended), entry),
                ),
                wire.ClientRequest(
                    entries=(entry,) * 20,
                ),
                wire.PreVoteRequest(source=1, destination=2, term=3, last_log_term=4, last_log_index=5, commit_index=6),
                wire.TimeoutNowRequest(
                    source=1, destination=2, term=3, last_log_term=4, last_log_index=5, commit_index=6
                ),
                wire.TransferVoteRequest(
                    source=1, destination=2, term=3, last_log_term=4, last_log_index=5, commit_index=6
                ),
                wire.ReadIndexRequest(),
            )
        ]
        squeezer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
        self._bomb = squeezer.compress(bytes(BOMB_BYTES)) + squeezer.flush()

    def make(self, random: Random) -> bytes:
        """Return mostly mutated requests, some with a log pack mutated inside, and a few with a bomb."""
        share = random.random()
        if share < BOMB_SHARE:
            return self._with_pack(self._bomb)
        if share < 0.2:
            plain = zlib.decompress(encode_log_pack(self._pack), zlib.MAX_WBITS | 16)
            squeezer = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS | 16)
            squeezed = squeezer.compress(mutated(plain, random, [plain], NUMBERS)) + squeezer.flush()
            return self._with_pack(squeezed)
        return mutated(random.choice(self._known), random, self._known, NUMBERS)

    @staticmethod
    def _with_pack(packed: bytes) -> bytes:
        head = encode_request(
            wire.SyncLogRequest(
                source=1,
                destination=4,
                term=3,
                last_log_index=9,
                commit_index=9,
                entries=(LogEntry(0, LogPack(0, ())),),
            )
        )
        sizes = 45 + 13
        log = head[45:54] + len(packed).to_bytes(4, "big") + packed
        return head[:41] + len(log).to_bytes(4, "big") + log[: sizes - 45] + packed

    def check(self, data: bytes, random: Random) -> str:
        """Check that a decoded request has one meaning, alone and in a stream."""
        kind = " bomb" if self._bomb[:64] in data else " pack" if data[45 + 8 : 45 + 9] == b"\x03" else ""
        try:
            request = decode_request(data)
        except GarlicFarmError as error:
            self._check_stream(data, None, random)
            if kind == " bomb" and "inflate" not in str(error):
                raise FuzzError(f"a bomb was refused for another reason: {error}") from error
            return f"refused{kind}"
        again = encode_request(request)
        if decode_request(again) != request:
            raise FuzzError("encoded and decoded again, it means something else")
        if again != data and not any(
            isinstance(each, LogEntry) and isinstance(each.value, LogPack) for each in request.entries
        ):
            raise FuzzError("it is encoded to other bytes")
        self._check_stream(data, request, random)
        return f"decoded{kind}"

    @staticmethod
    def _check_stream(data: bytes, request: wire.Request | None, random: Random) -> None:
        if random.random() < 0.9:
            return
        reader = RequestReader()
        try:
            found = None
            for piece in pieces_of(data, random):
                reader.feed(piece)
                found = found or reader.next()
        except GarlicFarmError:
            found = None
            if request is not None:
                raise FuzzError("a request is rejected in a stream, but accepted alone") from None
        if request is not None and found != request:
            raise FuzzError("in a stream it is another request")


class ReplyTarget(Subject[bytes]):
    """Replies of every type."""

    name = "replies"
    expected = frozenset({"refused", "decoded"})

    def __init__(self) -> None:
        recorded = json.loads(VECTORS.read_text())["messages"]
        self._known = [bytes.fromhex(each["hex"]) for each in recorded if each["msg"].endswith("Response")]
        self._known += [
            encode_reply(each(source=1, destination=2, term=3, next_index=4, accepted=True))
            for each in wire.REPLY_TYPES
        ]

    def make(self, random: Random) -> bytes:
        """Return a mutated reply; half of them have the length of a reply, so that its fields are decoded."""
        data = mutated(random.choice(self._known), random, self._known, NUMBERS)
        size = len(self._known[0])
        return (data + bytes(size))[:size] if random.random() < 0.5 else data

    def check(self, data: bytes, random: Random) -> str:
        """Check that a decoded reply is encoded to the same bytes, and that its reader returns the same reply."""
        reader, found = ReplyReader(), []
        refused = False
        try:
            for piece in pieces_of(data, random):
                reader.feed(piece)
                while (reply := reader.next()) is not None:
                    found.append(reply)
        except GarlicFarmError:
            refused = True
        try:
            decoded = decode_reply(data)
        except GarlicFarmError:
            return "refused"
        if encode_reply(decoded) != data:
            raise FuzzError("it is encoded to other bytes")
        if refused or found != [decoded]:
            raise FuzzError("in a stream it is another reply")
        return "decoded"


class JsonTarget(Subject[bytes]):
    """Application entries: every byte string becomes a record, the same on every server."""

    name = "json"
    expected = frozenset(
        {"Foreign", "Report", "Clock", "Publication", "Admission", "Exclusion", "CostFactor", "Factors", "Force"}
    )

    def __init__(self) -> None:
        master, leaf = FULL.masters[0].destination, "a" * 52
        records = (
            FULL,
            replace(FULL, destinations=(), masters=()),
            Clock(17, 3, 2_000),
            Publication(master, 2, 1_767_225_600, "c" * 64),
            Admission(b"12345678", "node-1", server_id=4),
            Exclusion(leaf, excluded=True),
            CostFactor(leaf, 1.5),
            Force(master),
            Factors(17, "formula", {leaf: 1.25}),
        )
        self._known = [encode(each) for each in records]

    def make(self, random: Random) -> bytes:
        return mutated(random.choice(self._known), random, self._known, JSON_PIECES)

    def check(self, data: bytes, random: Random) -> str:
        """Check that decoding depends only on the bytes, and that a decoded record can be encoded."""
        del random
        record = decode(data)
        if decode(data) != record:
            raise FuzzError("decoded twice, it means two things")
        if isinstance(record, Foreign):
            return "Foreign"
        if any(len(data) < len(whole) and whole.startswith(data) for whole in self._known):
            raise FuzzError("a truncated entry was accepted")
        if len(data) > ENTRY_LIMIT_BYTES:
            raise FuzzError("an entry above the size limit was accepted")
        if not _round_trips(record):
            raise FuzzError("encoded and decoded again, it means something else")
        return type(record).__name__


def _round_trips(record: Record) -> bool:
    return isinstance(record, Foreign) or decode(encode(record)) == record


def pieces_of(data: bytes, random: Random) -> list[bytes]:
    """Return the bytes as one to three arrivals, none of them empty."""
    cuts = sorted(random.randint(0, len(data)) for _ in range(random.randrange(3)))
    bounds = [0, *cuts, len(data)]
    return [data[left:right] for left, right in itertools.pairwise(bounds) if left < right]


def arrivals(data: bytes, random: Random) -> list[bytes]:
    """Return the pieces of a connection; half of the connections end after them, the others remain open."""
    return [*pieces_of(data, random), *([b""] if random.random() < 0.5 else [])]


def _make_introduction() -> str:
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    node_id = node_id_of(key.public_key().public_bytes_raw())
    info = NodeInfo(node_id, Address("127.0.0.1", 7669), Incarnation(3, 1), 30, b"metadata" * 40)
    return base64.urlsafe_b64encode(encode_node_info(sign(info, key))).decode().rstrip("=")


TARGETS: Final = (UpgradeTarget, RequestTarget, ReplyTarget, JsonTarget)
