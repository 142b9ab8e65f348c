"""Who belongs to the farm: Raft ids given out by the log, each bound to one identity for ever.

    founders     Raft ids 1, 2, … in order of NodeId, known with the founding
    admission    a log entry of the leader: this identity, under this name ──▶ the next Raft id that was never used
    approval     a person's word: another identity takes this name          ──▶ the one before is RETIRED
    eviction     a person's word: this identity is out            ──▶ it is EVICTED  (`bridge.core.membership.eviction`)
    a clock      of an identity nothing came since its admission            ──▶ LAPSED, and out of the table

The id follows from the entries before it, so two leaders cannot give out one id twice, however the one deposes the
other. The entry names it all the same, and is refused if it names another one: so the leader's signature covers the
binding of id and identity, and whoever knows the founders can check it without the log. For that the signed bytes of
the entry that first admitted an identity stay in the table. A Raft id is a storage that voted; given to another router
it would vote a second time. So an id is never given out twice, and what the log once said of it holds for ever.

*Lapses.* Whoever holds the farm's key can make identities without end, and each admission takes one of `ADMITTED_MAX`
places. An identity that came alive (it is in a configuration, or an entry of its own had effect) keeps its place for
good. One that did not within `LAPSE_MS` of log time loses its row: the place is free, its identity may ask again and
gets a new id. The id stays used up: the row of the highest id is kept, as LAPSED, until a higher one is given out, so
that the next id follows from the table as ever. An id below the highest that is not in the table has lapsed, and who
shows an admission with it is refused (`is_lapsed`).

The first identity under a name keeps it. A box that comes under a known name with another identity is either new under
an old name or a stranger, and the log cannot tell which: it is refused until a person has decided. The same identity
may change its name, to one that nobody has.

Who is retired or evicted stays in the table and never comes back under any name; the group loses its server. An
approval names the identity that it replaces: two persons who decide about one name at once cannot both be right, and
the second entry says so instead of retiring the router that the first one has just approved.

An admission carries the identity's public key, of which its NodeId is a hash, so that whoever has the log can seal
something for it that nobody else can open, whether it runs or not.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from bridge.core.log.records import Admission, Approval

ADMITTED_MAX = 1024
"""Identities in the life of one farm that came alive, or may still."""
ENTRY_BYTES_MAX = 768
"""Of an admission or an approval with its proof. The state keeps these bytes, and a handshake carries them in base64, a
third longer. An honest one has less than 450; members that nobody knows could make it 64 KiB, a thousand times."""
LAPSE_MS = 1_800_000
"""Log time in which an admitted identity must come alive: a router that was just approved needs seconds; half an hour
leaves room for one that gets a large log over a slow line, and keeps 1,024 places from being used up within a day by
one admission a reporting period, since sixty of them have lapsed when the sixty-first comes."""


class Standing(Enum):
    """What an admitted identity is to the farm."""

    MEMBER = "member"
    RETIRED = "retired"
    """Another identity was approved under its name."""
    EVICTED = "evicted"
    """A person has thrown it out."""
    LAPSED = "lapsed"
    """It never came alive. Only the row of the highest Raft id stands so."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """Whose Raft id it is. A founder has no name and no public key here until the leader has recorded them."""

    node_id: bytes
    name: str | None = None
    key: bytes | None = None
    standing: Standing = Standing.MEMBER
    entry: bytes = b""
    """The signed entry that first admitted it, an admission or an approval; a founder needs none."""
    unseen_since_ms: int | None = None
    """Log time of its admission, as long as it has not come alive. None for a founder."""

    @property
    def is_member(self) -> bool:
        """Neither retired nor evicted nor lapsed."""
        return self.standing is Standing.MEMBER

    @property
    def is_out(self) -> bool:
        """Retired or evicted: never admitted again."""
        return self.standing in {Standing.RETIRED, Standing.EVICTED}


@dataclass(frozen=True, slots=True)
class ServerAdmitted:
    """`node_id` has the Raft id `server_id`, and is called `name`."""

    server_id: int
    node_id: bytes
    name: str


@dataclass(frozen=True, slots=True)
class AdmissionRefused:
    """An admission or an approval that changed nothing, and why."""

    node_id: bytes
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class ServerRetired:
    """`node_id` gave its name to the identity `successor`, and its server leaves the group for good."""

    server_id: int
    node_id: bytes
    name: str
    successor: bytes


@dataclass(frozen=True, slots=True)
class AdmissionLapsed:
    """The identity never came alive under this Raft id: its place is free, the id is not."""

    server_id: int
    node_id: bytes
    name: str | None


AdmissionChange = ServerAdmitted | AdmissionRefused | ServerRetired


def server_name(admitted: Mapping[int, Admitted], server_id: int) -> str:
    """What people call the server with this Raft id."""
    known = admitted.get(server_id)
    return f"server {server_id}" if known is None or known.name is None else known.name


def of_founders(founders: tuple[bytes, ...]) -> dict[int, Admitted]:
    """The table before the first entry."""
    return {number: Admitted(node_id) for number, node_id in enumerate(founders, start=1)}


def raft_id_of(admitted: Mapping[int, Admitted], node_id: bytes) -> int | None:
    """The Raft id of an identity, None if it was never admitted, or its admission has lapsed."""
    return next(
        (
            server_id
            for server_id, each in admitted.items()
            if each.node_id == node_id and each.standing is not Standing.LAPSED
        ),
        None,
    )


def is_lapsed(admitted: Mapping[int, Admitted], server_id: int) -> bool:
    """Whether this Raft id was given out, and its identity never came alive."""
    each = admitted.get(server_id)
    if each is not None:
        return each.standing is Standing.LAPSED
    return 0 < server_id < max(admitted, default=0)


def next_raft_id(admitted: Mapping[int, Admitted], node_id: bytes) -> int:
    """The Raft id that the identity has, or would be given."""
    known = raft_id_of(admitted, node_id)
    return known if known is not None else max(admitted, default=0) + 1


def holder_of(admitted: Mapping[int, Admitted], name: str) -> int | None:
    """The Raft id of the member of that name."""
    return next((number for number, each in admitted.items() if each.name == name and each.is_member), None)


def refusal(admitted: Mapping[int, Admitted], node_id: bytes, name: str) -> str | None:
    """Why this identity cannot be recorded under this name; None if it can."""
    out = out_refusal(admitted, node_id)
    if out is not None:
        return out
    holder = holder_of(admitted, name)
    if holder is not None and admitted[holder].node_id != node_id:
        return (
            f"the name {name} belongs to the identity {admitted[holder].node_id.hex()}, and {node_id.hex()} comes under"
            f" it: if that is the same router with a new identity, `garlicfarm node approve {name}` at the leader;"
            " otherwise give it another name"
        )
    return _full(admitted, node_id)


def out_refusal(admitted: Mapping[int, Admitted], node_id: bytes) -> str | None:
    """Why an identity that was thrown out, or replaced, is not admitted; None if it is neither."""
    known = raft_id_of(admitted, node_id)
    each = None if known is None else admitted[known]
    if each is None or not each.is_out:
        return None
    how = "was evicted" if each.standing is Standing.EVICTED else f"has given its name {each.name} to another identity"
    return (
        f"the identity {node_id.hex()} {how}, and is never admitted again: a router that may come back needs a new"
        " state directory, and with it a new identity"
    )


def _full(admitted: Mapping[int, Admitted], node_id: bytes) -> str | None:
    if len(admitted) >= ADMITTED_MAX and raft_id_of(admitted, node_id) is None:
        return f"{ADMITTED_MAX} identities were admitted to this farm, and no more can be"
    return None


def came_alive(admitted: Mapping[int, Admitted], server_ids: Collection[int]) -> Mapping[int, Admitted]:
    """The table after something was heard of these servers."""
    seen = {
        server_id: replace(each, unseen_since_ms=None)
        for server_id in server_ids
        if (each := admitted.get(server_id)) is not None and each.unseen_since_ms is not None and each.is_member
    }
    return {**admitted, **seen} if seen else admitted


def after_time(
    admitted: Mapping[int, Admitted], log_time_ms: int, unproven_ms: int
) -> tuple[Mapping[int, Admitted], tuple[AdmissionLapsed, ...]]:
    """The table at this log time. `unproven_ms` of the time since the last clock say nothing about who was silent."""
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


def admit(
    admitted: Mapping[int, Admitted], admission: Admission, entry: bytes = b"", log_time_ms: int | None = None
) -> tuple[Mapping[int, Admitted], ServerAdmitted | AdmissionRefused | None]:
    """The table after one admission, and what changed; None if it said nothing new that anybody has to hear."""
    node_id, name = admission.node_id, admission.name
    reason = _too_long(entry) or refusal(admitted, node_id, name) or _other_id(admitted, admission)
    if reason is not None:
        return admitted, AdmissionRefused(node_id, name, reason)
    known = raft_id_of(admitted, node_id)
    if known is not None and admitted[known].name == name:
        key = admission.key or admitted[known].key
        return {**admitted, known: replace(admitted[known], key=key)}, None
    return _recorded(admitted, admission, entry, log_time_ms)


def approve(
    admitted: Mapping[int, Admitted], approval: Approval, entry: bytes = b"", log_time_ms: int | None = None
) -> tuple[Mapping[int, Admitted], tuple[AdmissionChange, ...]]:
    """The table after one approval, and what changed."""
    node_id, name = approval.node_id, approval.name
    reason = _too_long(entry) or approval_refusal(admitted, approval)
    holder = holder_of(admitted, name)
    if reason is not None or holder is None:
        return admitted, (AdmissionRefused(node_id, name, reason or f"nobody has the name {name}"),)
    retired = admitted[holder]
    table = {**admitted, holder: replace(retired, standing=Standing.RETIRED)}
    after, change = _recorded(table, approval, entry, log_time_ms)
    return after, (ServerRetired(holder, retired.node_id, name, node_id), change)


def approval_refusal(admitted: Mapping[int, Admitted], approval: Approval) -> str | None:
    """Why this approval changes nothing; None if it does."""
    node_id, name = approval.node_id, approval.name
    out = out_refusal(admitted, node_id)
    if out is not None:
        return out
    holder = holder_of(admitted, name)
    if holder is None:
        return f"nobody has the name {name}, so whoever comes under it is admitted without approval"
    if admitted[holder].node_id != approval.replaces or node_id == approval.replaces:
        return (
            f"the name {name} belongs to the identity {admitted[holder].node_id.hex()} by now, not to"
            f" {approval.replaces.hex()}: somebody else has decided about it; look at `garlicfarm node list`"
        )
    return _full(admitted, node_id) or _other_id(admitted, approval)


def _too_long(entry: bytes) -> str | None:
    if len(entry) <= ENTRY_BYTES_MAX:
        return None
    return f"the entry has {len(entry)} bytes, the limit is {ENTRY_BYTES_MAX}: no honest leader writes such a one"


def _other_id(admitted: Mapping[int, Admitted], entry: Admission | Approval) -> str | None:
    expected = next_raft_id(admitted, entry.node_id)
    if entry.server_id == expected:
        return None
    return (
        f"it gives the Raft id {entry.server_id} to {entry.node_id.hex()}, which has or gets {expected}: somebody was"
        " admitted meanwhile; the leader tries again"
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
        # The first entry stays: its author was admitted before, so the chain from any identity to a founder has no
        # circle.
        row = replace(before, name=name, key=record.key or before.key)
    return {**admitted, server_id: row}, ServerAdmitted(server_id, node_id, name)
