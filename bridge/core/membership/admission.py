"""The table of admitted identities: the log assigns Raft ids and binds each to one identity permanently.

    founders     Raft ids 1, 2, … in order of NodeId, known with the founding
    admission    the leader's entry: this identity, under this name         ──▶ the next unused Raft id
    approval     an operator's entry: another identity takes this name      ──▶ the previous identity is RETIRED
    eviction     an operator's entry about this identity          ──▶ it is EVICTED  (`bridge.core.membership.eviction`)
    clock entry  an identity has not become active for `LAPSE_MS`           ──▶ LAPSED, its row is deleted

docs/explanation/changing-servers.md ("Raft ids") has the rules for ids, lapses, names and shares.

The id follows from the previous entries, so two leaders cannot assign the same id. The entry names the id too, so the
leader's signature covers the binding of id and identity. Every node that knows the founders can verify the binding
without the log. For that, the table keeps the signed bytes of the entry that first admitted an identity.

The row of the highest id stays, as LAPSED, until a higher id is assigned. The next id follows from the highest one in
the table. An id below the highest one without a row counts as lapsed (`is_lapsed`): its admission lapsed, or
`with_room` dropped its row. A node that presents an admission with such an id is refused.
"""

from collections.abc import Collection, Mapping
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from bridge.core.log.records import Admission, Approval

ADMITTED_MAX = 1024
"""Maximum number of identities of one farm: members, retired and evicted identities, and nodes not started yet."""
ADMITTED_OF_LEADER_MAX = ADMITTED_MAX // 4
"""Maximum number of members that one leader has admitted."""
ENTRY_BYTES_MAX = 768
"""Limit of an admission or approval with its proof. The state and handshakes (in base64) carry these bytes. A normal
entry has less than 450 bytes. Without this limit it could grow to 64 KiB with unknown JSON fields, in each of a
thousand rows."""
LAPSE_MS = 1_800_000
"""Log time until the admission of an inactive identity lapses.

A newly approved node needs seconds; half an hour is enough for a large log over a slow line. The limit also protects
the 1,024 places. With one automatic admission per reporting period of 30 s, about sixty are pending at the same time.
"""


class Standing(Enum):
    """Status of an admitted identity."""

    MEMBER = "member"
    RETIRED = "retired"
    """An operator approved another identity under its name."""
    EVICTED = "evicted"
    """An operator evicted it."""
    LAPSED = "lapsed"
    """Never became active. Only the row of the highest Raft id has this value."""


class Admitted(Struct, frozen=True):
    """The identity with a Raft id. A founder has neither a name nor a public key until the leader has recorded them."""

    node_id: bytes
    name: str | None = None
    key: bytes | None = None
    standing: Standing = Standing.MEMBER
    entry: bytes = b""
    """The signed entry that first admitted it, an admission or an approval; empty for a founder."""
    unseen_since_ms: int | None = None
    """Log time of its admission, plus later time that does not count as absence; None for a founder,
    and once it has become active."""

    @property
    def is_member(self) -> bool:
        """True if it is neither retired nor evicted nor lapsed."""
        return self.standing is Standing.MEMBER

    @property
    def is_out(self) -> bool:
        """True if it is retired or evicted: it is not admitted again while the table has its row."""
        return self.standing in {Standing.RETIRED, Standing.EVICTED}


class ServerAdmitted(Struct, frozen=True):
    """`node_id` has the Raft id `server_id`, and is called `name`."""

    server_id: int
    node_id: bytes
    name: str


class AdmissionRefused(Struct, frozen=True):
    """An ineffective admission or approval, and the reason."""

    node_id: bytes
    name: str
    reason: str


class ServerRetired(Struct, frozen=True):
    """The identity `successor` took the name of `node_id`, whose server is removed permanently."""

    server_id: int
    node_id: bytes
    name: str
    successor: bytes


class AdmissionLapsed(Struct, frozen=True):
    """The identity never became active under this Raft id: its place is free, and the id is never assigned again."""

    server_id: int
    node_id: bytes
    name: str | None


AdmissionChange = ServerAdmitted | AdmissionRefused | ServerRetired


def server_label(server_id: int | None, name: str | None) -> str:
    """Return the server's name, or `server 3` until its name is recorded."""
    return name or f"server {server_id}"


def server_name(admitted: Mapping[int, Admitted], server_id: int) -> str:
    """Return the label of a server (`server_label`), with its name from the table."""
    known = admitted.get(server_id)
    return server_label(server_id, None if known is None else known.name)


def of_founders(founders: tuple[bytes, ...]) -> dict[int, Admitted]:
    """Return the table before the first entry."""
    return {number: Admitted(node_id) for number, node_id in enumerate(founders, start=1)}


def raft_id_of(admitted: Mapping[int, Admitted], node_id: bytes) -> int | None:
    """Return the Raft id of an identity; None if it was never admitted, or its admission has lapsed."""
    return next(
        (
            server_id
            for server_id, each in admitted.items()
            if each.node_id == node_id and each.standing is not Standing.LAPSED
        ),
        None,
    )


def is_lapsed(admitted: Mapping[int, Admitted], server_id: int) -> bool:
    """Return True if this Raft id was assigned, and its row has lapsed or was dropped."""
    each = admitted.get(server_id)
    if each is not None:
        return each.standing is Standing.LAPSED
    return 0 < server_id < max(admitted, default=0)


def next_raft_id(admitted: Mapping[int, Admitted], node_id: bytes) -> int:
    """Return the Raft id that the identity has, or would get."""
    known = raft_id_of(admitted, node_id)
    return known if known is not None else max(admitted, default=0) + 1


def holder_of(admitted: Mapping[int, Admitted], name: str) -> int | None:
    """Return the Raft id of the member with this name."""
    return next((number for number, each in admitted.items() if each.name == name and each.is_member), None)


def refusal(admitted: Mapping[int, Admitted], node_id: bytes, name: str, *, holder_runs: bool = False) -> str | None:
    """Return the reason not to record this identity under this name, or None.

    `holder_runs`: the identity that has the name is alive, so the new node is not the same node with a new identity.
    """
    out = retired_or_evicted_refusal(admitted, node_id)
    if out is not None:
        return out
    holder = holder_of(admitted, name)
    if holder is not None and admitted[holder].node_id != node_id and holder_runs:
        return (
            f"two running nodes have the name {name}: the identity {admitted[holder].node_id.hex()}, which owns it,"
            f" and {node_id.hex()}. Give the second node another name (`name` in its configuration, or --name) and"
            " start it again; do not approve it"
        )
    if holder is not None and admitted[holder].node_id != node_id:
        return (
            f"the name {name} belongs to the identity {admitted[holder].node_id.hex()}, and {node_id.hex()} uses it:"
            f" if that is the same node with a new identity, run `garlicfarm node approve {name}` at a voter;"
            " otherwise give it another name"
        )
    return _full(admitted, node_id)


def retired_or_evicted_refusal(admitted: Mapping[int, Admitted], node_id: bytes) -> str | None:
    """Return the reason not to admit an evicted or retired identity; None if it is neither."""
    known = raft_id_of(admitted, node_id)
    each = None if known is None else admitted[known]
    if each is None or not each.is_out:
        return None
    how = "was evicted" if each.standing is Standing.EVICTED else f"has given its name {each.name} to another identity"
    return (
        f"the identity {node_id.hex()} {how}, and is never admitted again: to let the node return, give it a new state"
        " directory, and so a new identity"
    )


def _full(admitted: Mapping[int, Admitted], node_id: bytes) -> str | None:
    if len(admitted) >= ADMITTED_MAX and raft_id_of(admitted, node_id) is None:
        return f"{ADMITTED_MAX} identities were admitted to this farm, which is the maximum"
    return None


def came_alive(admitted: Mapping[int, Admitted], server_ids: Collection[int]) -> Mapping[int, Admitted]:
    """Return the table after these servers have become active."""
    seen = {
        server_id: replace(each, unseen_since_ms=None)
        for server_id in server_ids
        if (each := admitted.get(server_id)) is not None and each.unseen_since_ms is not None and each.is_member
    }
    return {**admitted, **seen} if seen else admitted


def after_time(
    admitted: Mapping[int, Admitted], log_time_ms: int, unproven_ms: int
) -> tuple[Mapping[int, Admitted], tuple[AdmissionLapsed, ...]]:
    """Return the table at this log time, and the lapsed admissions.

    `unproven_ms`: the part of the time since the last clock entry that does not count as absence.
    """
    if all(each.unseen_since_ms is None for each in admitted.values()):
        return admitted, ()
    highest = max(admitted)
    table: dict[int, Admitted] = {}
    lapsed = []
    for server_id, each in admitted.items():
        if each.unseen_since_ms is None or each.is_out:
            table[server_id] = each
            continue
        since_ms = each.unseen_since_ms + unproven_ms
        late = each.is_member and log_time_ms - since_ms > LAPSE_MS
        if late:
            lapsed.append(AdmissionLapsed(server_id, each.node_id, each.name))
        if each.is_member and not late:
            table[server_id] = replace(each, unseen_since_ms=since_ms)
        elif server_id == highest:
            table[server_id] = Admitted(each.node_id, standing=Standing.LAPSED, unseen_since_ms=since_ms)
    return table, tuple(lapsed)


class LeaderShare(Struct, frozen=True):
    """The leader that signs an admission, and the leader that admitted each Raft id."""

    leader: bytes
    admitted_by: Mapping[int, bytes]


def share_refusal(admitted: Mapping[int, Admitted], node_id: bytes, share: LeaderShare) -> str | None:
    """Return the reason why this leader cannot admit this identity.

    None if its share has room, or the identity has a row.
    """
    if raft_id_of(admitted, node_id) is not None:
        return None
    own = (admitted[at] for at, leader in share.admitted_by.items() if leader == share.leader and at in admitted)
    if sum(each.is_member for each in own) < ADMITTED_OF_LEADER_MAX:
        return None
    return (
        f"the leader {share.leader.hex()} has admitted {ADMITTED_OF_LEADER_MAX} identities that are still members, its"
        " limit: let another server lead (`garlicfarm transfer NODE`), or evict the lost identities"
    )


def with_room(admitted: Mapping[int, Admitted]) -> Mapping[int, Admitted]:
    """Return the table with room for one more identity, if it contains a retired or evicted identity to drop.

    The row of the highest id is never dropped.
    """
    if len(admitted) < ADMITTED_MAX:
        return admitted
    highest = max(admitted)
    out = [server_id for server_id, each in admitted.items() if each.is_out and server_id != highest]
    if not out:
        return admitted
    # Retired rows are dropped first, because their nodes already have new identities. An evicted identity without a row
    # could be admitted again.
    first = min(out, key=lambda server_id: (admitted[server_id].standing is Standing.EVICTED, server_id))
    return {server_id: each for server_id, each in admitted.items() if server_id != first}


def admit(
    admitted: Mapping[int, Admitted],
    admission: Admission,
    entry: bytes = b"",
    log_time_ms: int | None = None,
    share: LeaderShare | None = None,
) -> tuple[Mapping[int, Admitted], ServerAdmitted | AdmissionRefused | None]:
    """Return the table after one admission, and the change; None without a change to report.

    `share` belongs to the leader that signed the admission; None below `BOUNDS_LEVEL`.
    """
    node_id, name = admission.node_id, admission.name
    before, reason = admitted, None if share is None else share_refusal(admitted, node_id, share)
    if share is not None and raft_id_of(admitted, node_id) is None:
        admitted = with_room(admitted)
    reason = reason or _too_long(entry) or refusal(admitted, node_id, name) or _other_id(admitted, admission)
    if reason is not None:
        return before, AdmissionRefused(node_id, name, reason)
    known = raft_id_of(admitted, node_id)
    if known is not None and admitted[known].name == name:
        key = admission.key or admitted[known].key
        return {**admitted, known: replace(admitted[known], key=key)}, None
    return _recorded(admitted, admission, entry, log_time_ms)


def approve(
    admitted: Mapping[int, Admitted],
    approval: Approval,
    entry: bytes = b"",
    log_time_ms: int | None = None,
    share: LeaderShare | None = None,
) -> tuple[Mapping[int, Admitted], tuple[AdmissionChange, ...]]:
    """Return the table after one approval, and the changes; `share` as for `admit`."""
    node_id, name = approval.node_id, approval.name
    before, reason = admitted, None if share is None else share_refusal(admitted, node_id, share)
    if share is not None and raft_id_of(admitted, node_id) is None:
        admitted = with_room(admitted)
    reason = reason or _too_long(entry) or approval_refusal(admitted, approval)
    holder = holder_of(admitted, name)
    if reason is not None or holder is None:
        return before, (AdmissionRefused(node_id, name, reason or f"no member has the name {name}"),)
    retired = admitted[holder]
    table = {**admitted, holder: replace(retired, standing=Standing.RETIRED)}
    after, change = _recorded(table, approval, entry, log_time_ms)
    return after, (ServerRetired(holder, retired.node_id, name, node_id), change)


def approval_refusal(admitted: Mapping[int, Admitted], approval: Approval) -> str | None:
    """Return the reason to refuse this approval; None if it is valid."""
    node_id, name = approval.node_id, approval.name
    out = retired_or_evicted_refusal(admitted, node_id)
    if out is not None:
        return out
    holder = holder_of(admitted, name)
    if holder is None:
        return f"no member has the name {name}, so its use does not need approval"
    if admitted[holder].node_id != approval.replaces or node_id == approval.replaces:
        return (
            f"the name {name} now belongs to the identity {admitted[holder].node_id.hex()}, not to"
            f" {approval.replaces.hex()}: another operator has approved it; see `garlicfarm node list`"
        )
    return _full(admitted, node_id) or _other_id(admitted, approval)


def _too_long(entry: bytes) -> str | None:
    if len(entry) <= ENTRY_BYTES_MAX:
        return None
    return (
        f"the entry has {len(entry)} bytes, but the limit is {ENTRY_BYTES_MAX}; a correct leader never writes such an"
        " entry"
    )


def _other_id(admitted: Mapping[int, Admitted], entry: Admission | Approval) -> str | None:
    expected = next_raft_id(admitted, entry.node_id)
    if entry.server_id == expected:
        return None
    return (
        f"the entry gives the Raft id {entry.server_id} to {entry.node_id.hex()}, but the next id is {expected}:"
        " another node was admitted first; the leader tries again"
    )


def _recorded(
    admitted: Mapping[int, Admitted], record: Admission | Approval, entry: bytes, log_time_ms: int | None
) -> tuple[Mapping[int, Admitted], ServerAdmitted]:
    node_id, name = record.node_id, record.name
    server_id = next_raft_id(admitted, node_id)
    before = admitted.get(server_id)
    if before is None:
        row = Admitted(node_id, name, record.key, entry=entry, unseen_since_ms=log_time_ms)
    else:
        # The identity's first entry is kept, because its author was admitted before this identity. So the chain of
        # authors from any identity to a founder does not contain cycles.
        row = replace(before, name=name, key=record.key or before.key)
    return {**admitted, server_id: row}, ServerAdmitted(server_id, node_id, name)
