"""What members send: messages, and bytes on the wire, per member and period.

Encoding is dearer than deciding, so in large groups only every so many-th message is encoded, with the production
encoder, and stands for the others. The simulation signs nothing; the bytes of seal and signatures are added as they
would be.
"""

from typing import Final

from gossip.core.messages import AliveUpdate, Broadcast, JoinAck, JoinReq, Leave, Message, PingRequest, PingResponse
from gossip.wire.codec import encode
from gossip.wire.identity import CREDENTIAL_BYTES
from gossip.wire.seal import OVERHEAD_BYTES

_ENCODES_ALL_UP_TO: Final = 150
"""The number of members up to which each message is encoded; beyond, about as many are encoded as in that group."""


def wire_bytes(message: Message) -> int:
    """How long the sealed datagram of a message is."""
    return len(encode(message)) + OVERHEAD_BYTES + CREDENTIAL_BYTES * _descriptions(message)


def _descriptions(message: Message) -> int:
    if isinstance(message, PingRequest | PingResponse):
        payload = message.payload
        return len(payload.sample) + sum(isinstance(update, AliveUpdate) for update in payload.updates)
    if isinstance(message, JoinAck):
        return 1 + len(message.sample)
    return int(isinstance(message, JoinReq | Leave | Broadcast))


class Load:
    """Counts what is sent."""

    def __init__(self, members: int) -> None:
        self._encoded_every = max(members // _ENCODES_ALL_UP_TO, 1) | 1
        self.messages_of: dict[int, int] = {}
        self.messages_by_period: list[float] = []
        """Messages per member in each period."""
        self.bytes_by_period: list[float] = []
        """Bytes per member in each period."""
        self._messages = 0
        self._bytes = 0
        self._encoded = 0

    def sent(self, number: int, message: Message) -> None:
        """One message of one member."""
        self.messages_of[number] = self.messages_of.get(number, 0) + 1
        self._messages += 1
        if self._messages % self._encoded_every == 0:
            self._encoded += 1
            self._bytes += wire_bytes(message)

    def end_of_period(self, members: int) -> None:
        """A period is over, in which so many members ran: of a small group nobody may have begun yet."""
        each = self._bytes / self._encoded if self._encoded else 0.0
        self.messages_by_period.append(self._messages / members if members else 0.0)
        self.bytes_by_period.append(self._messages * each / members if members else 0.0)
        self._messages = self._bytes = self._encoded = 0
