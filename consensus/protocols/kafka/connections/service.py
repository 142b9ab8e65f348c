"""The interface between a listener and its services: for each API, the versions and a function.

    listener ──frame──▶ codec ──message──▶ Service of that API ──message──▶ codec ──frame──▶ listener

A listener merges its services. The quorum uses Vote, Fetch of replicas and others; administrators use DescribeQuorum,
AddRaftVoter and others. Clients use Metadata, Fetch of consumers, Produce and groups. ApiVersions, SASL and the framing
belong to the listener. Requests of one connection are served in order, as in Kafka; so a waiting fetch delays only
later requests on its connection. If an API holds its replies for longer than Kafka, its requests overlap.

Messages are the Structs of `wire.messages_*`, which are the same for all versions of an API.

This is a separate module because the listener and the services import it, and do not import each other.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec import Struct

from consensus.protocols.kafka.connections.query_budget import QueryBudget


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request.

    `principal` is the authenticated name, such as `User:alice`; None without authentication.
    """

    client_id: str
    principal: str | None
    host: str
    port: int
    api_version: int
    correlation_id: int
    listener: str
    """The name of the listener that received the request, such as `CONTROLLER`."""
    budget: QueryBudget = field(default_factory=QueryBudget, compare=False)
    """The budget of the connection; the service charges it for queries."""


Answer = Callable[[Any, Caller], Awaitable[Any]]
"""Serves a request of `wire.messages_*`; returns its response, or None for a request without a response (acks=0)."""


class ServedApi(Struct, frozen=True):
    """One API of a service: the versions that it serves, both ends included."""

    min_version: int
    max_version: int
    answer: Answer
    overlaps: bool = False
    """True if its requests may overlap others of their connection (`look_ahead`); otherwise each is served alone."""


class AskElsewhereError(Exception):
    """Another server must reply: the listener ends the connection, so that the client retries elsewhere."""


class Service(Protocol):
    """Some APIs that belong together."""

    def apis(self) -> Mapping[int, ServedApi]:
        """Return the APIs by key.

        Called when the listener opens, and for each ApiVersions request: a service may close an API.
        """

    def features(self) -> Mapping[str, tuple[int, int, int | None]]:
        """Return the lowest and highest supported level of each feature, and the finalized level or None.

        Only a quorum has features, such as `kraft.version`.
        """
        return {}
