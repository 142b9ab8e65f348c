"""SCRAM (RFC 5802, RFC 7677): the exchange of the RFC, and the refusals of each side."""

import hashlib
import hmac
import random
from base64 import b64decode, b64encode
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from consensus.protocols.kafka.wire.scram import (
    Mechanism,
    ScramClient,
    ScramCredential,
    ScramError,
    ScramServer,
    ScramUsers,
    UnknownUsers,
    scram_credential,
)
from tests.effort import each_case

PASSWORD = "pencil"  # noqa: S105 -- from the RFC's example
SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
# RFC 7677, section 3.
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
ANSWER = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
PROVEN = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def rfc_client() -> ScramClient:
    return ScramClient(Mechanism.SCRAM_SHA_256, "user", PASSWORD, lambda _: b64decode("rOprNGfwEbeRWgbNEkqO"))


def random_bytes(seed: str) -> Callable[[int], bytes]:
    return random.Random(seed).randbytes


def server(mechanism: Mechanism, users: dict[str, ScramCredential]) -> ScramServer:
    known = ScramUsers({user: {mechanism: credential} for user, credential in users.items()})
    return ScramServer(mechanism, known, random_bytes("server"))


def attempt(mechanism: Mechanism, at: ScramServer, user: str, password: str) -> None:
    client = ScramClient(mechanism, user, password, random_bytes("client"))
    client.check(at.respond(client.final(at.respond(client.first()))))


def test_client_sends_messages_of_rfc_example() -> None:
    client = rfc_client()
    assert client.first() == FIRST
    assert client.final(ANSWER) == FINAL
    client.check(PROVEN)


@each_case("mechanism", Mechanism, ids=lambda mechanism: mechanism.value)
@each_case("user", ["alice", "a,b=c", "Ålice", "=2C"])
def test_user_with_correct_password_is_authenticated(mechanism: Mechanism, user: str) -> None:
    at = server(mechanism, {user: scram_credential(mechanism, PASSWORD, SALT)})
    attempt(mechanism, at, user, PASSWORD)
    assert at.user == user


@pytest.mark.parametrize("user", ["alice", "bob"])
def test_wrong_password_and_unknown_user_get_same_error(user: str) -> None:
    mechanism = Mechanism.SCRAM_SHA_512
    at = server(mechanism, {"alice": scram_credential(mechanism, PASSWORD, SALT)})
    with pytest.raises(ScramError, match=r"^user, password or mechanism is wrong$"):
        attempt(mechanism, at, user, "pen")
    assert at.user is None


def test_unknown_user_always_gets_same_salt() -> None:
    def salt_of(user: str) -> bytes:
        client = ScramClient(Mechanism.SCRAM_SHA_256, user, "", random_bytes("client"))
        return server(Mechanism.SCRAM_SHA_256, {}).respond(client.first()).split(b",")[1]

    assert salt_of("bob") == salt_of("bob") != salt_of("eve")


def test_servers_with_same_users_reply_alike_to_unknown_name() -> None:
    mechanism = Mechanism.SCRAM_SHA_512
    kept = {name: scram_credential(mechanism, name, SALT, 4096 + at) for at, name in enumerate(("alice", "carol"))}
    reordered = dict(reversed(kept.items()))
    first = ScramClient(mechanism, "bob", "", random_bytes("client")).first()
    answers = {server(mechanism, users).respond(first) for users in (kept, reordered)}
    assert len(answers) == 1
    others = {"alice": scram_credential(mechanism, "another password", SALT)}
    assert server(mechanism, others).respond(first) not in answers


def test_unknown_name_gets_iterations_of_known_user() -> None:
    mechanism = Mechanism.SCRAM_SHA_256
    users = {name: scram_credential(mechanism, name, b"s" * 20, 8192) for name in ("alice", "carol")}
    answer = server(mechanism, users).respond(ScramClient(mechanism, "bob", "", random_bytes("client")).first())
    _, salt, iterations = (field.partition("=")[2] for field in answer.decode().split(","))
    assert (len(b64decode(salt)), iterations) == (20, "8192")


def test_unknown_user_is_refused_even_with_substitute_key() -> None:
    # An attacker might know the password of the substitute, so the server must also check that the user exists.
    mechanism = Mechanism.SCRAM_SHA_256

    class Careless(UnknownUsers, frozen=True):
        def credential(self, mechanism: Mechanism, user: str) -> ScramCredential:
            del user
            return scram_credential(mechanism, PASSWORD, SALT)

    users = ScramUsers({})
    users.unknown = Careless(b"", {})
    at = ScramServer(mechanism, users, random_bytes("server"))
    with pytest.raises(ScramError, match="user, password or mechanism"):
        attempt(mechanism, at, "bob", PASSWORD)


@each_case(
    ("message", "reason"),
    [
        (b"p=tls-unique,,n=user,r=abc", "channel binding"),
        (b"n,a=root,n=user,r=abc", "another user"),
        (b"n,,n=,r=abc", "empty name"),
        (b"n,,n=user,r=", "empty name or nonce"),
        (b"n,,m=ext,n=user,r=abc", "has not the fields"),
        (b"n,,r=abc,n=user", "has not the fields"),
        (b"\xff", "not UTF-8"),
        (b"n" * 5000, "5000 bytes"),
        (b"", "channel binding|fields"),
    ],
    ids=["binding", "authorization", "no-name", "no-nonce", "extension", "order", "no-utf8", "long", "empty"],
)
def test_server_refuses_invalid_first_message(message: bytes, reason: str) -> None:
    with pytest.raises(ScramError, match=reason):
        server(Mechanism.SCRAM_SHA_256, {}).respond(message)


@each_case(
    "change",
    [
        lambda final: final.replace(b"c=biws", b"c=eSws"),
        lambda final: final.replace(b",r=", b",r=x"),
        lambda final: final.rpartition(b"p=")[0] + b"p=AAAA",
        lambda final: final.rpartition(b"p=")[0] + b"p=?",
        lambda final: final.rpartition(b"p=")[0] + b"p=" + b64encode(bytes(32)),
        lambda final: final.rpartition(b",p=")[0],
    ],
    ids=["header", "nonce", "short-proof", "no-base64", "wrong-proof", "no-proof"],
)
def test_server_refuses_changed_proof_and_further_messages(change: Callable[[bytes], bytes]) -> None:
    mechanism = Mechanism.SCRAM_SHA_256
    at = server(mechanism, {"user": scram_credential(mechanism, PASSWORD, SALT)})
    client = rfc_client()
    final = client.final(at.respond(client.first()))
    with pytest.raises(ScramError):
        at.respond(change(final))
    with pytest.raises(ScramError, match="over already"):
        at.respond(final)
    assert at.user is None


@pytest.mark.parametrize("password", [PASSWORD, "pen"])
@pytest.mark.parametrize("user", ["alice", "bob"])
def test_repeated_client_nonce_has_its_own_error(user: str, password: str) -> None:
    # Given a client like librdkafka before 2.6.1, which repeats its nonce and proves the message with its password
    mechanism = Mechanism.SCRAM_SHA_512
    at = server(mechanism, {"alice": scram_credential(mechanism, PASSWORD, SALT)})
    first, nonce = f"n={user},r=abc", "abc"
    answer = at.respond(f"n,,{first}".encode()).decode()
    bare = f"c=biws,r={nonce}{answer.partition(',')[0].removeprefix('r=')}"
    final = final_message(mechanism, password, first, answer, bare)

    # Then the error names the nonce, even if the user or the password is wrong
    with pytest.raises(ScramError, match=r"repeats its nonce.*librdkafka before 2\.6\.1"):
        at.respond(final)
    assert at.user is None


def test_nonce_of_another_login_has_its_own_error() -> None:
    mechanism = Mechanism.SCRAM_SHA_256
    at = server(mechanism, {"user": scram_credential(mechanism, PASSWORD, SALT)})
    at.respond(FIRST)
    with pytest.raises(ScramError, match=r"does not continue the nonce of this login \(RFC 5802\)$"):
        at.respond(FINAL)


def final_message(mechanism: Mechanism, password: str, first: str, answer: str, bare: str) -> bytes:
    """Return a client's last message for `bare`, with any nonce, and its matching proof."""
    _, salt, iterations = (field.partition("=")[2] for field in answer.split(","))
    digest = mechanism.digest
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), b64decode(salt), int(iterations))
    client_key = hmac.digest(salted, b"Client Key", digest)
    stored_key = hashlib.new(digest, client_key).digest()
    signature = hmac.digest(stored_key, f"{first},{answer},{bare}".encode(), digest)
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    return f"{bare},p={b64encode(proof).decode()}".encode()


@each_case(
    "answer",
    [
        ANSWER.replace(b"r=rO", b"r=RO"),
        b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        ANSWER.replace(b"i=4096", b"i=1"),
        ANSWER.replace(b"i=4096", b"i=999999999"),
        ANSWER.replace(b"i=4096", b"i=many"),
        ANSWER.replace(b"s=W", b"s=?"),
        b"e=other-error",
    ],
    ids=["nonce", "own-nonce", "weak", "endless", "no-number", "no-base64", "error"],
)
def test_client_refuses_invalid_or_expensive_reply(answer: bytes) -> None:
    client = rfc_client()
    client.first()
    with pytest.raises(ScramError):
        client.final(answer)


def test_client_refuses_server_without_password() -> None:
    client = rfc_client()
    client.final(ANSWER)
    with pytest.raises(ScramError, match="does not know the password"):
        client.check(PROVEN.replace(b"v=6", b"v=7"))


def test_credential_with_unsupported_iterations_is_refused() -> None:
    for iterations in (4095, 1_000_001):
        with pytest.raises(ValueError, match="iterations"):
            scram_credential(Mechanism.SCRAM_SHA_256, PASSWORD, SALT, iterations)
    made = scram_credential(Mechanism.SCRAM_SHA_256, PASSWORD, SALT, 4097)
    assert replace(made, iterations=4096) != scram_credential(Mechanism.SCRAM_SHA_256, PASSWORD, SALT)
