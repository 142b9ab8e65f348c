"""Join tokens and auths: admission without a table of applicants.

    applicant                        seed
    JoinReq(info)             ->
                              <-     JoinNak(TOKEN_EXPECTED, token)        minted, not stored
    JoinReq(info, token, auth) ->    token is ours, fresh, for this address and id; auth proves the farm's key

A token is `minter's node id | expiry | MAC(secret, minter, expiry, address, port, applicant)`; the secret is drawn at
start and never leaves the process. The first round trip proves that the applicant receives at its source address. So a
forged source address cannot make this node ping a third party. A table of pending joins would have the same effect, but
any host could fill it. A MAC does not need memory. A token stays valid after use until it expires: within these seconds
the same applicant may join again from the same address, without effect.

The auth is `HMAC(join key of the farm, token, encoded NodeInfo)`. The token begins with the id of its minter, so the
auth is bound to that target and is not valid at another node.

This is a separate module, because it alone holds the secret of the tokens.
"""

import hmac
from hashlib import sha256
from typing import Final

from gossip.core.member import NODE_ID_BYTES, Address, NodeId, NodeInfo
from gossip.wire.codec import DatagramError, encode_node_info, pack_address

TOKEN_LIFETIME_MS: Final = 10_000
TOKEN_SECRET_BYTES: Final = 32
_EXPIRY_BYTES: Final = 8
_MAC_BYTES: Final = 16
TOKEN_BYTES: Final = NODE_ID_BYTES + _EXPIRY_BYTES + _MAC_BYTES


class TokenMint:
    """Mints and recognizes the tokens of one start of a node."""

    def __init__(self, node_id: NodeId, secret: bytes) -> None:
        if len(secret) != TOKEN_SECRET_BYTES:
            raise ValueError(f"a token secret has {TOKEN_SECRET_BYTES} bytes, not {len(secret)}")
        self._node_id = node_id
        self._secret = secret

    def mint(self, address: Address, applicant: NodeId, now_ms: int) -> bytes:
        """Return a token for `applicant` at `address`."""
        head = self._node_id + (now_ms + TOKEN_LIFETIME_MS).to_bytes(_EXPIRY_BYTES, "big")
        return head + self._mac(head, address, applicant)

    def recognizes(self, token: bytes, address: Address, applicant: NodeId, now_ms: int) -> bool:
        """Return True if this node minted `token` for this applicant at this address, and it has not expired."""
        if len(token) != TOKEN_BYTES or not token.startswith(self._node_id):
            return False
        head, mac = token[:-_MAC_BYTES], token[-_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(head, address, applicant)):
            return False
        return now_ms <= int.from_bytes(head[NODE_ID_BYTES:], "big")

    def _mac(self, head: bytes, address: Address, applicant: NodeId) -> bytes:
        try:
            packed = pack_address(address.host)
        except DatagramError as error:
            raise ValueError(str(error)) from error
        place = bytes([len(packed)]) + packed + address.port.to_bytes(2, "big")
        return hmac.digest(self._secret, head + place + applicant, sha256)[:_MAC_BYTES]


def join_auth(join_key: bytes, token: bytes, applicant: NodeInfo) -> bytes:
    """Return the proof of the farm's key for one join; `applicant` is the signed info exactly as it is sent."""
    return hmac.digest(join_key, bytes([len(token)]) + token + encode_node_info(applicant), sha256)
