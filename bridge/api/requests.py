"""Requests to the control endpoint (`docs/reference/control-endpoint.md`).

An operator's command is a JSON object with one key, the name of the command; `CommandRequest` lists the names. The
command has the meaning of the entry in the log. But it uses addresses instead of hashes and destinations, and names
instead of Raft ids.
"""

from typing import Annotated, Final, get_args

from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import FieldInfo, fields

from bridge.api.json import RequestBody
from bridge.core.formation.founding import CLUSTER_ID_BYTES
from bridge.core.log.records import Scope

QUERY_TIMEOUT_MS: Final = 5_000
QUERY_TIMEOUT_LIMIT_MS: Final = 20_000


class TransferRequest(RequestBody, frozen=True):
    """Hand leadership over."""

    to: str | None = None
    """The name or Raft id of the voter that will lead; null: the voter with the most complete log."""


class ConfirmClusterRequest(RequestBody, frozen=True):
    """Accept a cluster as the node's farm."""

    cluster_id: Annotated[str, Meta(pattern=f"^[0-9a-f]{{{2 * CLUSTER_ID_BYTES}}}\\Z")]
    """The id of the cluster."""


class KeyRequest(RequestBody, frozen=True):
    """One step of a rotation."""

    key: str
    """The id of the key."""
    force: bool = False
    """True: do it even if members are down or do not confirm."""


class NodeRequest(RequestBody, frozen=True):
    """Approve or evict an identity."""

    node: str
    """Name or NodeId of the identity."""
    force: bool = False
    """True: evict it even if no majority would remain, or even if it is already evicted.

    A repeated eviction replaces the farm's keys once more.
    """


class ReplaceKeysRequest(RequestBody, frozen=True):
    """Replace all gossip keys."""

    force: bool = False
    """True: replace them even if some members would not receive a new key."""


class ExportKeysRequest(RequestBody, frozen=True):
    """Read the farm's keys."""

    unconfirmed: bool = False
    """True: return the keys of this node even if no leader confirms that they are current."""


class InvitationRequest(RequestBody, frozen=True):
    """Make an invitation."""

    uses: int = 1
    """The number of nodes that may redeem it."""
    lifetime_s: int = 3600
    """Seconds until its end."""


class RevokeRequest(RequestBody, frozen=True):
    """Revoke an invitation."""

    id: str
    """The id of the invitation."""


class EventRequest(RequestBody, frozen=True):
    """Send a user event to all nodes."""

    name: str
    """1 to 32 printable characters."""
    payload: str = ""
    """At most 512 bytes in UTF-8."""


class QueryRequest(RequestBody, frozen=True):
    """Send a query to all nodes."""

    name: str
    """1 to 32 printable characters; every node answers `ping` and `version`."""
    payload: str = ""
    """At most 512 bytes in UTF-8."""
    timeout_ms: Annotated[int, Meta(ge=1, le=QUERY_TIMEOUT_LIMIT_MS)] = QUERY_TIMEOUT_MS
    """Time to wait for answers, milliseconds."""


# -- operators' commands -----------------------------------------------------------------------------------------------


class ExclusionOrder(RequestBody, frozen=True):
    """Exclude a leaf from all structures, or include it again."""

    hash: str
    """The `.b32.i2p` address of the leaf (the entry in the log has its hash)."""
    excluded: bool
    """True: exclude it."""


class CostOrder(RequestBody, frozen=True):
    """Multiply the cost of a leaf."""

    hash: str
    """The `.b32.i2p` address of the leaf (the entry in the log has its hash)."""
    factor: float
    """0.1 to 10; 1 removes an earlier factor."""


class ForceOrder(RequestBody, frozen=True):
    """Publish the structure of a *master* (an address of the service) again."""

    master: str
    """The address of the master."""


class RemovalOrder(RequestBody, frozen=True):
    """Remove a server from the group, or allow it to join again."""

    server: str
    """Name, Raft id or NodeId of the server."""
    removed: bool
    """True to remove the server, false to allow it to join again."""


class ClientOrder(RequestBody, frozen=True):
    """Admit a client key, or remove it."""

    name: str
    """Name of the key in the farm."""
    admitted: bool
    """True to admit the key, false to end its admission."""
    key: str | None = None
    """Public half of the key, in base64; only to admit it."""
    scopes: tuple[Scope, ...] = ()
    """Rights of the key; only to admit it."""


class CorrectionOrder(RequestBody, frozen=True):
    """Bring log time back to the clocks of a majority of the voters."""


Order = ExclusionOrder | CostOrder | ForceOrder | RemovalOrder | ClientOrder | CorrectionOrder


class CommandRequest(RequestBody, frozen=True):
    """One command of an operator: exactly one of these keys."""

    exclusion: ExclusionOrder | UnsetType = UNSET
    """Exclude a leaf from all structures, or include it again."""
    cost: CostOrder | UnsetType = UNSET
    """Multiply the cost of a leaf."""
    force: ForceOrder | UnsetType = UNSET
    """Publish the structure of a *master* (an address of the service) again."""
    removal: RemovalOrder | UnsetType = UNSET
    """Remove a server from the group, or allow it to join again."""
    client: ClientOrder | UnsetType = UNSET
    """Admit a client key, or remove it."""
    correction: CorrectionOrder | UnsetType = UNSET
    """Bring log time back to the clocks of a majority of the voters."""

    def __post_init__(self) -> None:
        if sum(getattr(self, each.name) is not UNSET for each in fields(self)) != 1:
            raise ValueError("expected exactly one command")

    @property
    def kind(self) -> str:
        """Return the name of the command: its key in the JSON object."""
        return next(each.name for each in fields(self) if getattr(self, each.name) is not UNSET)

    @property
    def order(self) -> Order:
        """Return the order of the command."""
        order: Order = getattr(self, self.kind)
        return order


def body_form(body: type[RequestBody]) -> str:
    """Return the form of a body: each key with a value.

    The value is the default of a number or flag, `true` for a required flag, and otherwise the key's name in capitals.
    """
    members = [f'"{each.encode_name}": {_value_form(each)}' for each in fields(body)]
    if body is CommandRequest:
        return f"one of {', '.join(f'{{{each}}}' for each in members)}"
    return f"{{{', '.join(members)}}}"


def _value_form(field: FieldInfo) -> str:
    match field.default:
        case UnsetType():
            return body_form(get_args(field.type)[0])
        case bool() | int():
            return str(field.default).lower()
        case _:
            return "true" if field.type is bool else field.name.upper().replace("_", " ")
