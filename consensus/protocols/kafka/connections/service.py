"""What a listener needs of those that answer requests: for each API, the versions and a function.

    listener ──frame──▶ codec ──message──▶ Service of that API ──message──▶ codec ──frame──▶ listener

A listener merges the services that it is given: the quorum's (Vote, Fetch of replicas, …), the administrators'
(DescribeQuorum, AddRaftVoter, …) and the clients' (Metadata, Fetch of consumers, Produce, groups). ApiVersions, SASL
and the framing are the listener's own. Requests of one connection are answered one after the other, in order, as Kafka
does; so a fetch that waits holds up what comes behind it on its connection, and nothing else. An API that holds its
answers for longer than Kafka's does overlaps with those behind it.

Messages are the dataclasses of `wire.messages_*`, which are the same for all versions of an API.

A module of its own, because listener and services need it, and neither needs the other.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `principal` is the authenticated name, such as `User:alice`; None: the listener asks for none."""

    client_id: str
    principal: str | None
    host: str
    port: int
    api_version: int
    correlation_id: int
    listener: str
    """The name of the listener that the request came in by, such as `CONTROLLER`."""


Answer = Callable[[Any, Caller], Awaitable[Any]]
"""Takes a request of `wire.messages_*`; gives its response, or None for a request that gets no response (acks=0)."""


@dataclass(frozen=True, slots=True)
class ServedApi:
    """One API of a service: the versions that it serves, both ends included."""

    min_version: int
    max_version: int
    answer: Answer
    overlaps: bool = False
    """Requests of a connection that overlap are under way together (`look_ahead`); any other has it for itself."""


class AskElsewhereError(Exception):
    """Another server must answer, and the client knows which there are: the connection ends, so that it asks again."""


class Service(Protocol):
    """Some APIs that belong together."""

    def apis(self) -> Mapping[int, ServedApi]:
        """By API key. Asked when the listener opens, and for each ApiVersions request: a service may close an API."""

    def features(self) -> Mapping[str, tuple[int, int, int | None]]:
        """Return the lowest and highest supported level of each feature, and the finalized one if it is.

        Only a quorum has features, such as `kraft.version`.
        """
        return {}
