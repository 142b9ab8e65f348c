"""The invitations of this node, in a file: made, listed, revoked, and redeemed within their limits.

    create ──▶ invitations.json: hash of the secret, uses, end ──▶ the token, shown once
    redeem ──▶ one more use, bound to an identity ──▶ fsync ──▶ only then the bundle leaves this node
    admitted, too late or revoked ──▶ the use no longer waits for an admission

The file (mode 0600) contains hashes of secrets, ids, names and dates: its reader cannot redeem a token. A use belongs
to the identity that signed the request. If its connection breaks, the same identity can repeat the request until the
invitation expires or is revoked. Other identities cannot redeem a spent token.

Dates come from this machine's clock. If the clock is set back, dates continue from the latest known date by the
monotonic clock. So this does not extend an invitation's lifetime while the node runs.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from bridge.node.events.event_log import clock_ms
from bridge.wire.keys.invitation import SECRET_BYTES, InvitationError, RefusalCode, secret_hash
from consensus.storage import replace_file
from gossip.wire import node_id_of

FILE_NAME: Final = "invitations.json"
FILE_LIMIT_BYTES: Final = 1024 * 1024
INVITATIONS_MAX: Final = 64
USES_MAX: Final = 64
LIFETIME_LIMIT_S: Final = 7 * 86_400
LIFETIME_DEFAULT_S: Final = 3600
APPROVAL_LIFETIME_MS: Final = 1_800_000
"""Maximum time from the use of a token to an automatic approval; after that, an operator approves the node."""
_ID_BYTES: Final = 4
_LATEST_MS: Final = 2**53 - 1

_Milliseconds = Annotated[int, Meta(ge=0, le=_LATEST_MS)]


class RedeemError(Exception):
    """The token cannot be redeemed; `code` and the text are for its holder."""

    def __init__(self, code: RefusalCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class UnusableInvitationsError(Exception):
    """The file cannot be used; the text has the remedy."""


class Use(Struct, frozen=True, rename="camel"):
    """An identity that has redeemed an invitation."""

    node_id: Annotated[str, Meta(pattern="^[0-9a-f]{16}\\Z")]
    name: str
    time_ms: _Milliseconds
    settled: bool = False
    """True after the admission, after the time for an admission, or after a revocation."""


class Invitation(Struct, frozen=True, rename="camel"):
    """One invitation."""

    hash: Annotated[bytes, Meta(min_length=32, max_length=32)]
    uses_max: Annotated[int, Meta(ge=1, le=USES_MAX)]
    created_ms: _Milliseconds
    ends_ms: _Milliseconds
    revoked: bool = False
    uses: Annotated[tuple[Use, ...], Meta(max_length=USES_MAX)] = ()

    @property
    def id(self) -> str:
        """The id for operators; it is not secret."""
        return self.hash[:_ID_BYTES].hex()

    @property
    def is_settled(self) -> bool:
        """True if no use waits for an admission."""
        return all(use.settled for use in self.uses)

    def closed_by(self, now_ms: int) -> RefusalCode | None:
        """Return the reason why no other identity can redeem it; None if it is open."""
        if self.revoked:
            return RefusalCode.REVOKED
        if len(self.uses) >= self.uses_max:
            return RefusalCode.USED
        return RefusalCode.EXPIRED if now_ms >= self.ends_ms else None


class _File(Struct, frozen=True, rename="camel"):
    version: Annotated[int, Meta(ge=1, le=1)] = 1
    latest_ms: _Milliseconds = 0
    port: Annotated[int, Meta(ge=0, lt=2**16)] = 0
    invitations: Annotated[tuple[Invitation, ...], Meta(max_length=INVITATIONS_MAX)] = ()


class Joiner(Struct, frozen=True):
    """An identity that redeems a token."""

    public_key: bytes
    name: str

    @property
    def node_id(self) -> bytes:
        """The id of the identity."""
        return bytes(node_id_of(self.public_key))


class Invitations:
    """The file and its content. Its methods are synchronous; the caller runs one at a time."""

    def __init__(
        self,
        state_dir: Path,
        clock: Callable[[], int] = clock_ms,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = state_dir / FILE_NAME
        self._clock = clock
        self._monotonic_s = monotonic_s
        self._file = _read(self._path)
        self._latest = self._file.latest_ms, monotonic_s()
        """The latest known date, and the monotonic time of that date."""

    def now_ms(self) -> int:
        """Return the time. It never goes back, and it advances at least as fast as the monotonic clock."""
        latest_ms, at_s = self._latest
        now_s = self._monotonic_s()
        now_ms = min(max(self._clock(), latest_ms + int((now_s - at_s) * 1000)), _LATEST_MS)
        self._latest = now_ms, now_s
        return now_ms

    @property
    def port(self) -> int:
        """The port of the tokens; 0 before the first token."""
        return self._file.port

    @property
    def all(self) -> tuple[Invitation, ...]:
        """All known invitations, the oldest first."""
        return self._file.invitations

    @property
    def open_uses(self) -> int:
        """The number of identities that can still redeem a token."""
        now_ms = self.now_ms()
        return sum(each.uses_max - len(each.uses) for each in self.all if each.closed_by(now_ms) is None)

    @property
    def is_listening(self) -> bool:
        """True while a token can be redeemed, or the request with a redeemed token can be repeated."""
        now_ms = self.now_ms()
        return any(not each.revoked and now_ms < each.ends_ms for each in self.all)

    @property
    def is_active(self) -> bool:
        """True while the port is open, or a use waits for an admission."""
        return self.is_listening or any(self.waiting())

    def create(self, uses: int, lifetime_s: int, port: int) -> tuple[Invitation, bytes]:
        """Return a new invitation and its secret; raise InvitationError beyond a limit, and OSError."""
        now_ms = self.now_ms()
        if not 1 <= uses <= USES_MAX or not 0 < lifetime_s <= LIFETIME_LIMIT_S:
            raise InvitationError(
                f"an invitation has 1 to {USES_MAX} uses, and is valid for at most {LIFETIME_LIMIT_S // 86_400} days"
            )
        kept = self.all
        if len(kept) >= INVITATIONS_MAX:
            closed = next((each for each in kept if each.closed_by(now_ms) is not None and each.is_settled), None)
            if closed is None:
                raise InvitationError(
                    f"{INVITATIONS_MAX} invitations are open or wait for an admission: revoke some"
                    " (`garlicfarm invite list`)"
                )
            kept = tuple(each for each in kept if each is not closed)
        secret = os.urandom(SECRET_BYTES)
        made = Invitation(secret_hash(secret), uses, now_ms, min(now_ms + lifetime_s * 1000, _LATEST_MS))
        self._store((*kept, made), port)
        return made, secret

    def revoke(self, invitation_id: str) -> Invitation | None:
        """Revoke an invitation and end the wait of its uses; return None for an unknown id. Raise OSError."""
        found = next((each for each in self.all if each.id == invitation_id), None)
        if found is None:
            return None
        uses = tuple(msgspec.structs.replace(use, settled=True) for use in found.uses)
        return self._replace(found, msgspec.structs.replace(found, revoked=True, uses=uses))

    def redeem(self, secret: bytes, joiner: Joiner, *, is_name_taken: bool = False) -> Invitation:
        """Spend a use; it is durable on return. Raise RedeemError and OSError.

        A taken name is reported only to the holder of a valid token: other machines must not learn the names of nodes.
        """
        shown, now_ms = secret_hash(secret), self.now_ms()
        found = next((each for each in self.all if each.hash == shown), None)
        if found is None:
            raise RedeemError(
                RefusalCode.UNKNOWN,
                "this node does not have an invitation with this token: make one with `garlicfarm invite new` there",
            )
        closed, node_id = found.closed_by(now_ms), joiner.node_id.hex()
        repeats = any(each.node_id == node_id for each in found.uses)
        if closed is not None and not (closed is RefusalCode.USED and repeats and now_ms < found.ends_ms):
            raise RedeemError(closed, f"{_CLOSED[closed]}. `garlicfarm invite new` makes a new token")
        if is_name_taken:
            text = f"a running node of the farm has the name {joiner.name!r}: choose another name"
            raise RedeemError(RefusalCode.NAME_TAKEN, text)
        return found if repeats else self._replace(found, _with_use(found, Use(node_id, joiner.name, now_ms)))

    def waiting(self) -> Iterator[Use]:
        """Yield the uses that wait for an admission."""
        for each in self.all:
            yield from (use for use in each.uses if not use.settled)

    def is_late(self, use: Use) -> bool:
        """Return True if the time for the approval of a use has passed."""
        return self.now_ms() - use.time_ms > APPROVAL_LIFETIME_MS

    def settle(self, use: Use) -> None:
        """Mark a use as settled, durably. Raise OSError."""
        for each in self.all:
            if use in each.uses:
                uses = tuple(msgspec.structs.replace(one, settled=True) if one == use else one for one in each.uses)
                self._replace(each, msgspec.structs.replace(each, uses=uses))
                return

    def _replace(self, old: Invitation, new: Invitation) -> Invitation:
        self._store(tuple(new if each is old else each for each in self.all), self.port)
        return new

    def _store(self, invitations: tuple[Invitation, ...], port: int) -> None:
        made = _File(latest_ms=self.now_ms(), port=port, invitations=invitations)
        replace_file(self._path, msgspec.json.encode(made))
        self._file = made


_CLOSED: Final = {
    RefusalCode.USED: "the token was used already",
    RefusalCode.EXPIRED: "the token has expired",
    RefusalCode.REVOKED: "an operator has revoked the token",
}


def _with_use(found: Invitation, use: Use) -> Invitation:
    return msgspec.structs.replace(found, uses=(*found.uses, use))


def _read(path: Path) -> _File:
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(FILE_LIMIT_BYTES), type=_File)
    except FileNotFoundError:
        return _File()
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnusableInvitationsError(
            f"{path} cannot be used ({error}): remove it; this also revokes all tokens of this node"
        ) from None
