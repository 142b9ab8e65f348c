"""Server nonces, which use memory only after a client has proved the password with them.

    nonce = hex( milliseconds 8 │ random 8 │ HMAC-SHA256(secret, milliseconds │ random), first 16 bytes )

Challenges are not stored, so a flood of them does not use memory. For each nonce after its first authenticated use, the
highest `nc` is stored, and only a higher one is accepted. So a recorded request cannot be sent again. The table is
bounded. When a nonce is dropped, its time of issue becomes the floor. Every unused nonce from before the floor counts
as expired, so requests with a dropped nonce never become valid again. A refused client with the right password gets
`stale`, and repeats the login with a fresh nonce.

The clock must not go back during the process. The secret is new in each process, which invalidates every older nonce.
"""

import hmac
import re
import struct
from collections.abc import Callable

LIFETIME_MS = 2 * 60 * 60 * 1000
_NONCE = re.compile(r"[0-9a-f]{64}")
_STAMP = struct.Struct(">Q8s")
_MAC_BYTES = 16


class NonceBook:
    """Mints nonces, and judges their use."""

    def __init__(
        self,
        secret: bytes,
        random_bytes: Callable[[int], bytes],
        *,
        capacity: int = 4096,
    ) -> None:
        self._secret = secret
        self._random_bytes = random_bytes
        self._capacity = capacity
        self._highest_count: dict[str, int] = {}
        self._floor_ms = -1

    def mint(self, now_ms: int) -> str:
        """Return a fresh nonce."""
        stamp = _STAMP.pack(now_ms, self._random_bytes(8))
        return (stamp + self._mac(stamp)).hex()

    def use(self, nonce: str, count: int, now_ms: int) -> bool:
        """Return True, once, for a new highest `count` of a current nonce. Call only after the password is proven."""
        if not self.is_current(nonce, now_ms):
            return False
        if nonce not in self._highest_count:
            self._make_room()
        if count <= self._highest_count.get(nonce, 0):
            return False
        self._highest_count[nonce] = count
        return True

    def is_current(self, nonce: str, now_ms: int) -> bool:
        """Return True if this process minted the nonce recently.

        Otherwise the client needs a new one, which is not an error.
        """
        issued_ms = self._issued_ms(nonce)
        if issued_ms is None or issued_ms > now_ms or now_ms - issued_ms >= LIFETIME_MS:
            return False
        return nonce in self._highest_count or issued_ms > self._floor_ms

    def _make_room(self) -> None:
        if len(self._highest_count) < self._capacity:
            return
        # Drop an eighth in one step, so that a full table is not sorted for every new nonce. Hex digits sort by time.
        for nonce in sorted(self._highest_count)[: max(1, self._capacity // 8)]:
            del self._highest_count[nonce]
            self._floor_ms = max(self._floor_ms, int(nonce[:16], 16))

    def _issued_ms(self, nonce: str) -> int | None:
        if not _NONCE.fullmatch(nonce):
            return None
        data = bytes.fromhex(nonce)
        stamp, mac = data[: _STAMP.size], data[_STAMP.size :]
        if not hmac.compare_digest(mac, self._mac(stamp)):
            return None
        issued_ms: int = _STAMP.unpack(stamp)[0]
        return issued_ms

    def _mac(self, stamp: bytes) -> bytes:
        return hmac.digest(self._secret, stamp, "sha256")[:_MAC_BYTES]
