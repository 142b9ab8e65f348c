"""A short form of one node's view of the farm: the node's answer to the query `view`.

    verdict=degraded severity=warning term=3 commit=812345 leader=3 alive=1-20,22 suspect= dead=21 left= \
    publishers=wkq7xjh3r2mq:3,abcd2345efgh:0

Servers are named by their Raft ids, in ranges. The id 0 means that the leader is unknown, or that a master lacks a
publisher. A master is named by the first 12 letters of its address. An answer to a query has at most 512 bytes.
Statuses that do not fit are left out, of alive servers first.

An answer is sealed with the farm's key, but its sender does not sign it (`bridge.node.membership.user_messages`). So a
reader displays an answer, but does not act on it. The only error is `ShortViewError`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct, field

from bridge.core.formation.member import MemberStatus
from bridge.wire.membership.round_trips import ANSWER_LIMIT_BYTES

VIEW_QUERY: Final = "view"
MASTER_LETTERS: Final = 12
SERVERS_LISTED_MAX: Final = 64
MASTERS_LISTED_MAX: Final = 8
_NUMBER_MAX: Final = 2**63 - 1
_ID: Final = r"[0-9]{1,10}"
_RANGES: Final = rf"(?:{_ID}(?:-{_ID})?(?:,{_ID}(?:-{_ID})?)*)?"
_STATUSES: Final = " ".join(rf"{each.value}=(?P<{each.value}>{_RANGES})" for each in MemberStatus)
_MASTER: Final = rf"[a-z2-7]{{1,{MASTER_LETTERS}}}:{_ID}"
_ANSWER: Final = re.compile(
    rf"verdict=(?P<verdict>[a-z][a-z-]{{0,31}}) severity=(?P<severity>[a-z]{{1,16}}) term=(?P<term>[0-9]{{1,19}})"
    rf" commit=(?P<commit>[0-9]{{1,19}}) leader=(?P<leader>{_ID}) {_STATUSES}"
    rf" publishers=(?P<publishers>(?:{_MASTER}(?:,{_MASTER})*)?)"
)
_IN_ORDER: Final = (MemberStatus.DEAD, MemberStatus.SUSPECT, MemberStatus.LEFT, MemberStatus.ALIVE)
"""Order of the statuses in an answer with too little space: members with the last statuses are left out."""


class ShortViewError(ValueError):
    """The text is not the short form of a view."""


class ShortView(Struct, frozen=True):
    """The farm as one node sees it, by Raft ids."""

    verdict: str
    severity: str
    term: int
    commit_index: int
    leader: int | None
    statuses: Mapping[int, MemberStatus] = field(default_factory=dict)
    publishers: Mapping[str, int | None] = field(default_factory=dict)
    """First letters of a master's address → Raft id of its publisher; None without a publisher."""


def write_short_view(view: ShortView) -> str:
    """Return the view as an answer."""
    head = (
        f"verdict={view.verdict} severity={view.severity} term={view.term} commit={view.commit_index}"
        f" leader={view.leader or 0}"
    )
    masters = list(view.publishers.items())[:MASTERS_LISTED_MAX]
    publishers = ",".join(f"{master[:MASTER_LETTERS]}:{server or 0}" for master, server in masters)
    left = ANSWER_LIMIT_BYTES - len(head) - len(publishers) - len(" publishers=")
    left -= sum(len(f" {each.value}=") for each in MemberStatus)
    ranges: dict[MemberStatus, str] = {}
    for status in _IN_ORDER:
        ids = sorted(server for server, found in view.statuses.items() if found is status)
        ranges[status] = _fitting(_ranges(ids[:SERVERS_LISTED_MAX]), left)
        left -= len(ranges[status])
    statuses = " ".join(f"{each.value}={ranges[each]}" for each in MemberStatus)
    return f"{head} {statuses} publishers={publishers}"


def read_short_view(text: str) -> ShortView:
    """Return the view in an answer; raise `ShortViewError`."""
    found = _ANSWER.fullmatch(text) if len(text) <= ANSWER_LIMIT_BYTES else None
    if found is None:
        raise ShortViewError(f"not a view of a node: {text[:40]!r}")
    statuses: dict[int, MemberStatus] = {}
    for status in MemberStatus:
        for server in _ids(found[status.value]):
            statuses[server] = status
    if len(statuses) > SERVERS_LISTED_MAX or max(int(found["term"]), int(found["commit"])) > _NUMBER_MAX:
        raise ShortViewError(f"{len(statuses)} servers, term {found['term']}, commit index {found['commit']}")
    masters = (each.partition(":") for each in found["publishers"].split(",") if each)
    return ShortView(
        verdict=found["verdict"],
        severity=found["severity"],
        term=int(found["term"]),
        commit_index=int(found["commit"]),
        leader=int(found["leader"]) or None,
        statuses=statuses,
        publishers={master: int(server) or None for master, _, server in masters},
    )


def _ranges(ids: list[int]) -> Iterator[str]:
    """Yield `1-3` and `7` for 1, 2, 3, 7."""
    start = 0
    for place, server in enumerate(ids):
        if place + 1 == len(ids) or ids[place + 1] != server + 1:
            first = ids[start]
            yield str(first) if first == server else f"{first}-{server}"
            start = place + 1


def _fitting(texts: Iterable[str], limit: int) -> str:
    fitting = ""
    for each in texts:
        longer = f"{fitting},{each}" if fitting else each
        if len(longer) > limit:
            break
        fitting = longer
    return fitting


def _ids(text: str) -> Iterator[int]:
    for each in text.split(",") if text else ():
        first, _, last = each.partition("-")
        if not 0 <= int(last or first) - int(first) < SERVERS_LISTED_MAX:
            raise ShortViewError(f"servers {each}")
        yield from range(int(first), int(last or first) + 1)
