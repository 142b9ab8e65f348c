"""Every request of the control endpoint: method, path, types, parameters, and rights of the sender.

    ROUTES ──▶ bridge.node.control.routes   the server: which handler answers, decoding, refusals
           ──▶ bridge.node.control.client   the client: path and types
           ──▶ docs/reference/control-endpoint.md

A handler is registered under its route, and a client names the route that it calls. So a path cannot differ between the
two sides, and the reference has each route. GET requests do not change anything: a token for reading suffices. A POST
needs the token of an administrator (`docs/reference/control-endpoint.md`, Over TCP).
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final, Generic, Literal, TypeVar

from msgspec import Struct, field

from bridge.api import control, requests
from bridge.api.debug import DebugAnswer
from bridge.api.json import RequestBody
from bridge.api.log import LogPage
from bridge.api.observations.history import HOURS_DEFAULT, HOURS_MAX, HistoryAnswer
from bridge.api.observations.perspectives import PerspectivesAnswer
from bridge.api.trace import EventPage
from bridge.api.view import FarmView

PAGE_DEFAULT: Final = 100
DEBUG_SECONDS: Final = 5
DEBUG_SECONDS_MAX: Final = 60
"""Longest profile in a debug bundle."""

A = TypeVar("A", bound=Struct)
"""The answer's type."""


class Access(IntEnum):
    """The rights of a client; each includes the lower ones."""

    NONE = 0
    READ = 1
    ADMIN = 2


class Route(Struct, Generic[A], frozen=True, kw_only=True, eq=False):
    """One request and its answer."""

    method: Literal["GET", "POST"]
    path: str
    meaning: str
    """The meaning of the request, for the table of the reference."""
    answer: type[A]
    """`Struct` if the response is not a JSON document; `content` then describes it."""
    content: str = ""
    body: type[RequestBody] | None = None
    """The type of the request's body; None if the body is ignored, or is bytes."""
    empty: bytes = b""
    """The JSON that replaces an empty body."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """The numeric parameters of the query, each with its default: whole numbers from 0 on."""
    texts: tuple[str, ...] = ()
    """The other parameters of the query."""
    status: int = 200
    """The HTTP status of the response, unless the handler returns another one."""

    @property
    def expected(self) -> str:
        """Return the correct form of the body, for the text of a refusal."""
        form = "" if self.body is None else requests.body_form(self.body)
        return f"expected {form}{', or nothing' if self.empty else ''}"

    @property
    def access(self) -> Access:
        """Return the rights that the request needs."""
        return Access.READ if self.method == "GET" else Access.ADMIN


ROUTES: Final[dict[str, Route[Any]]] = {}
"""The routes by path, in the order of the reference."""


def _get(path: str, answer: type[A], meaning: str, **more: Any) -> Route[A]:
    return _declared(Route(method="GET", path=path, answer=answer, meaning=meaning, **more))


def _post(path: str, answer: type[A], meaning: str, **more: Any) -> Route[A]:
    return _declared(Route(method="POST", path=path, answer=answer, meaning=meaning, **more))


def _check(order: Route[Any]) -> Route[control.CheckedAnswer]:
    """Return the route that checks an order without an effect, before a user confirms it.

    The check has its own path and is not a query parameter. Versions without checks ignore the query of some orders, so
    they would execute the order.
    """
    meaning = f"check an order of `{order.path}`, without an effect"
    return _post(f"{order.path}/check", control.CheckedAnswer, meaning, body=order.body, empty=order.empty)


def _declared(route: Route[A]) -> Route[A]:
    if ROUTES.setdefault(route.path, route) is not route:
        raise ValueError(f"{route.path} is declared twice")
    return route


_PAGE: Final = {"from": 1, "limit": PAGE_DEFAULT, "wait": 0}

# -- the farm, its log, the node ---------------------------------------------------------------------------------------

VIEW: Final = _get("/v1/view", FarmView, "the node's whole view of the farm")
CLUSTER: Final = _get(
    "/v1/cluster", control.ClusterAnswer, "the leader, its address, the voters, as this node knows them"
)
HISTORY: Final = _get(
    "/v1/history",
    HistoryAnswer,
    f"the last `hours` (at most {HOURS_MAX}) of verdict, leader, publishers, members, leaves and alarms, and figures of"
    " each minute, from the node's [history](history.md)",
    numbers={"hours": HOURS_DEFAULT},
)
VIEWS: Final = _get(
    "/v1/views",
    PerspectivesAnswer,
    "the farm as each node sees it: a query by gossip for at most 2 seconds, at most one in 5 seconds. 409 `no-gossip`,"
    " 503 `starting` before the node's first view",
)
LOG_TIME: Final = _get("/v1/log-time", control.LogTimeAnswer, "log time and each server's clock")
LOG: Final = _get("/v1/log", LogPage, "committed entries, below", numbers={**_PAGE, "linearizable": 0})
EVENTS: Final = _get("/v1/events", EventPage, "the trace, below", numbers=_PAGE)
STREAM: Final = _get(
    "/v1/stream", Struct, "view and trace as server-sent events, below", content="text", numbers={"from": 1, "log": 0}
)
PAGE: Final = _get("/", Struct, "[a page for browsers](#a-page-for-browsers), if an operator allows it", content="HTML")
METRICS: Final = _get("/metrics", Struct, "[metrics](metrics.md) as Prometheus text", content="text")
READYZ: Final = _get(
    "/readyz",
    control.ReadyAnswer,
    "200 while the farm works, as this node sees it, else 503 ([verdicts.md](verdicts.md))",
)
HEALTHZ: Final = _get(
    "/healthz", control.HealthAnswer, "200 unless a restart of this process would help; a lost quorum is 200"
)
SUBMIT: Final = _post(
    "/v1/submit",
    control.SubmitAnswer,
    "commit one entry, a JSON object in the body, and apply it at most once, below",
    texts=("request",),
)
COMMANDS: Final = _post(
    "/v1/commands", control.CommandAnswer, "commands of operators, below", body=requests.CommandRequest
)
COMMANDS_CHECK: Final = _check(COMMANDS)
EVENT: Final = _post(
    "/v1/event",
    control.EventAnswer,
    "send a user event to all nodes by gossip; 409 `no-gossip`, 503 `busy` beyond 20 a second"
    " ([send-events.md](../how-to/send-events.md))",
    body=requests.EventRequest,
)
QUERY: Final = _post(
    "/v1/query",
    control.QueryAnswer,
    "query all nodes; replies when all have replied, or after the timeout (at most 20,000 ms)",
    body=requests.QueryRequest,
)
LEAVE: Final = _post(
    "/v1/leave",
    control.LeavingAnswer,
    "leave the farm: inform the peers, be removed from the group, stop; 202 immediately",
    status=202,
)
WITHDRAW: Final = _post(
    "/v1/withdraw", control.WithdrawnAnswer, "withdraw this node's promise to create the farm, or 409"
)
WITHDRAW_CHECK: Final = _check(WITHDRAW)
CONFIRM_CLUSTER: Final = _post(
    "/v1/confirm-cluster",
    control.ConfirmedAnswer,
    "accept this cluster as the node's farm; 200 when this is durable, or 409",
    body=requests.ConfirmClusterRequest,
)
TRANSFER: Final = _post(
    "/v1/transfer",
    control.LeaderAnswer,
    "transfer leadership. A node that is not the leader passes the order on through the log, and replies when another"
    " server leads. 404, 409 or 503 with the reason",
    body=requests.TransferRequest,
    empty=b"{}",
)

# -- identities --------------------------------------------------------------------------------------------------------

NODES: Final = _get(
    "/v1/nodes",
    control.NodesAnswer,
    "the identities in the log, and up to 64 that wait for approval",
)
NODES_APPROVE: Final = _post(
    "/v1/nodes/approve",
    control.NodeApproved,
    "approve a new node, or give a name to another identity and retire the previous one. A node that does not lead"
    " takes over leadership first",
    body=requests.NodeRequest,
)
NODES_APPROVE_CHECK: Final = _check(NODES_APPROVE)
NODES_EVICT: Final = _post(
    "/v1/nodes/evict",
    control.NodeEvicted,
    "evict an identity permanently, and replace all keys; a node that does not lead takes over leadership first."
    " Without gossip, keys are not replaced, and"
    " `leftOut` names every remaining member",
    body=requests.NodeRequest,
)
NODES_EVICT_CHECK: Final = _check(NODES_EVICT)
KEYS_REPLACE: Final = _post(
    "/v1/keys/replace",
    control.KeysReplaced,
    "replace all gossip keys without an eviction; a node that does not lead takes over leadership first. 409 `left-out`"
    " names members with unknown public"
    " keys, unless forced",
    body=requests.ReplaceKeysRequest,
    empty=b"{}",
)
KEYS_REPLACE_CHECK: Final = _check(KEYS_REPLACE)
BACKUP: Final = _post(
    "/v1/backup", Struct, "a backup, without keys, hard state and identity", content="the file's bytes"
)

# -- invitations -------------------------------------------------------------------------------------------------------

INVITATIONS: Final = _get(
    "/v1/invitations", control.InvitationsAnswer, "the invitations of this node, without their tokens"
)
INVITATIONS_NEW: Final = _post(
    "/v1/invitations/new",
    control.InvitationCreated,
    "make an invitation; the only response with its token. **Secret**",
    body=requests.InvitationRequest,
    empty=b"{}",
)
INVITATIONS_REVOKE: Final = _post(
    "/v1/invitations/revoke",
    control.InvitationAnswer,
    "revoke an invitation; 404 without one of this id",
    body=requests.RevokeRequest,
)

# -- keys, faults ------------------------------------------------------------------------------------------------------

KEYS: Final = _get(
    "/v1/keys",
    control.KeysAnswer,
    "the gossip keys by id, and the members that have them; queries the members and may take seconds",
)
KEYS_INSTALL: Final = _post(
    "/v1/keys/install", control.KeyAnswer, "install a new key: every member opens datagrams with it"
)
KEYS_USE: Final = _post(
    "/v1/keys/use", control.KeyAnswer, "seal with a key; 409 if members would be cut off", body=requests.KeyRequest
)
KEYS_REMOVE: Final = _post(
    "/v1/keys/remove", control.KeyAnswer, "refuse a key; 409 if members would be cut off", body=requests.KeyRequest
)
KEYS_REMOVE_CHECK: Final = _check(KEYS_REMOVE)
KEYS_EXPORT: Final = _post(
    "/v1/keys/export",
    control.FarmKeyAnswer,
    "the current farm key file; 503 if no leader confirms it, unless `unconfirmed` or without gossip. **Secret**",
    body=requests.ExportKeysRequest,
    empty=b"{}",
)
DEBUG: Final = _post(
    "/v1/debug",
    DebugAnswer,
    "data for fault analysis: settings, versions, a profile of `?seconds=` (at most 60), stacks, memory; without keys"
    " and values of variables",
    numbers={"seconds": DEBUG_SECONDS},
)
