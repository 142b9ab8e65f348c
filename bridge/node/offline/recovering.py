"""The creation of a new cluster from a survivor's state directory, after the old cluster lost its majority permanently.

If no state directory is left, a backup replaces it. Then the server of the new cluster is a new node, with an identity
made here.

    DIR/raft, formation.json ──read offline──▶ FarmOnDisk ──▶ `recovered` ──▶ DIR/raft.recovering: one snapshot, no log
                                                                                   │ all durable; only then:
    DIR/formation.recovering.json                         written: a new cluster id, one founder
    DIR/raft            ──▶ DIR/raft.of-<old cluster>     kept, never opened by a node again
    DIR/admissions.json, committed.json                   removed: Raft ids and commit index of the old cluster
    DIR/raft.recovering ──▶ DIR/raft
    DIR/formation.recovering.json ──▶ DIR/formation.json  last, because the founding determines the meaning of the log

    BACKUP ──▶ FarmOnDisk ──▶ `recovered` ──▶ NEW/raft.recovering ──▶ …, into a new directory

The new storage begins with a snapshot at the end of the old log, so joining servers get the state, and indexes
continue. The node keeps its identity: its votes belong to the old cluster only, and every connection names its cluster.
The farm key's `expect` stays. It is the number of founders, and the leader never removes a voter if fewer than `expect`
would remain. So the farm can grow to its old size with the same key file.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import SystemRandom
from shutil import rmtree

import trio
from msgspec import Struct, field
from msgspec.structs import replace

from bridge.core.farm.state_machine import result_of_first_term
from bridge.core.formation.founding import NONCE_BYTES, FormationState, Promise, founding_of
from bridge.core.membership.admission import raft_id_of, retired_or_evicted_refusal, server_label
from bridge.core.state.farm_state import SESSION_LIMITS
from bridge.core.state.recovery import FIRST_TERM, SURVIVOR_ID, Reset, recovered
from bridge.core.state.reqids import AHEAD_S, Reqids
from bridge.node.membership.admissions import FILE_NAME as ADMISSIONS_FILE
from bridge.node.membership.forming import FILE_NAME as FORMATION_FILE
from bridge.node.membership.forming import RECOVERY_FILE_NAME
from bridge.node.offline.state_reading import (
    FarmOnDisk,
    StateReadingError,
    aside_of,
    read_backup,
    read_directory,
    storage_of,
)
from bridge.node.raft.commit_store import FILE_NAME as COMMIT_FILE
from bridge.node.raft.replica import UNKNOWN_ENDPOINT
from bridge.node.raft.storage_note import RAFT_DIRECTORY, STORAGE_NOTE, STORAGE_NOTE_TEXT
from bridge.node.security.local_trust import UntrustedPathError, check_state_directory
from bridge.node.tasks.published_store import FILE_NAME as PUBLISHED_FILE
from bridge.wire.log.snapshot import decode_farm, encode_farm
from bridge.wire.membership.formation_state import encode_formation_state
from consensus import (
    MAX_NUMBER,
    TERM_STEP_MAX,
    Configuration,
    HardState,
    Index,
    Install,
    LogId,
    Persist,
    Server,
    SnapshotChange,
    StoreChunk,
    Term,
    integer_id,
)
from consensus.sessions import SessionTable
from consensus.storage import (
    Directory,
    ImageWriter,
    OutOfSpaceError,
    StorageError,
    StorageOptions,
    open_directory,
    replace_file,
    sync_directory,
)
from gossip import StateError
from gossip.node import NodeIdentity, keep_generation, reset_stored_era, save_identity

MAKING = f"{RAFT_DIRECTORY}.recovering"
_CHUNK_BYTES = 1024 * 1024
_GENERATION = 1
"""The generation that `recover` writes. Each later start of the node has a higher generation."""
LOST_TERMS = 2**16
"""Number of terms that the new cluster skips after the last kept term.

The old farm may have begun further terms that this survivor does not know, but fewer than this number. So a term
belongs to one cluster only. A consumer may have read more of the old log than this survivor keeps. The consumer detects
this by the term of its last entry.
"""
_SEGMENT_BYTES = 1024 * 1024
"""Size of the first file of the log; the node makes the others by its settings."""


class RecoveryError(Exception):
    """The new cluster was not created; the text contains the reason and the remedy."""


class RecoveryPlan(Struct, frozen=True):
    """The plan of `recover` for a directory or a backup, before any change."""

    survivor: FarmOnDisk
    state_dir: Path
    node_id: bytes
    formation: FormationState
    reset: Reset = field(default_factory=Reset)
    identity: NodeIdentity | None = None
    """The identity of the new node that continues from a backup; None if the survivor keeps its own."""

    @property
    def new_cluster_id(self) -> bytes:
        """A unique id, derived from a random number."""
        return b"" if self.formation.founding is None else self.formation.founding.cluster_id

    @property
    def begins_at(self) -> LogId:
        """Index and term of the new cluster's first snapshot."""
        return replace(self.survivor.last, term=FIRST_TERM) if self.reset.term else self.survivor.last

    @property
    def term(self) -> Term:
        """The term of the new cluster before its first election."""
        return FIRST_TERM if self.reset.term else self.survivor.last.term + LOST_TERMS

    @property
    def aside(self) -> Path | None:
        """The new place of the old storage, if there is one."""
        if self.identity is not None:
            return None
        return aside_of(self.state_dir, self.survivor.cluster_id)

    @property
    def left_behind(self) -> tuple[str, ...]:
        """The other members of the old group, by name if the farm knew one."""
        admitted = self.survivor.farm.admitted
        own_id = raft_id_of(admitted, self.node_id)
        others = sorted(map(integer_id, self.survivor.configuration.member_ids - {own_id}))
        names = {each: admitted[each].name for each in others if each in admitted}
        return tuple(server_label(each, names.get(each)) for each in others)


async def plan_recovery(state_dir: Path, cut_after: Index | None = None, reset: Reset | None = None) -> RecoveryPlan:
    """Read the directory, up to the cut; raise RecoveryError.

    `cut_after` omits the entries after this index, and `reset` resets term, log time, publication seconds or era. Both
    are only for a new cluster: servers of one cluster must not disagree about their agreed past.
    """
    try:
        survivor = await read_directory(state_dir, cut_after)
    except StateReadingError as error:
        raise RecoveryError(str(error)) from error
    out = retired_or_evicted_refusal(survivor.farm.admitted, survivor.node_id)
    if out is not None:
        raise RecoveryError(f"{out}; make the new farm from another survivor")
    reset = reset or Reset()
    _check_term(survivor, reset)
    plan = RecoveryPlan(survivor, state_dir, survivor.node_id, _created_alone(survivor, survivor.node_id, reset), reset)
    interrupted = await trio.Path(state_dir / RECOVERY_FILE_NAME).exists()
    if plan.aside is not None and plan.aside.exists() and not interrupted:
        raise RecoveryError(f"{plan.aside} exists already: move it away, then run the command again")
    return plan


async def plan_recovery_of_backup(backup: Path, state_dir: Path, reset: Reset | None = None) -> RecoveryPlan:
    """Read the backup; raise RecoveryError."""
    try:
        check_state_directory(state_dir)
    except UntrustedPathError as error:
        raise RecoveryError(str(error)) from error
    if await trio.Path(state_dir).exists():
        raise RecoveryError(f"{state_dir} exists: name a new directory for the state of the new node")
    try:
        survivor = await read_backup(backup)
    except StateReadingError as error:
        raise RecoveryError(str(error)) from error
    reset = reset or Reset()
    _check_term(survivor, reset)
    identity = NodeIdentity.throwaway()
    formation = _created_alone(survivor, identity.node_id, reset)
    return RecoveryPlan(survivor, state_dir, identity.node_id, formation, reset, identity)


def _check_term(survivor: FarmOnDisk, reset: Reset) -> None:
    """Refuse a term near the highest possible one: the new cluster could soon not elect a leader."""
    if not reset.term and survivor.last.term > MAX_NUMBER - TERM_STEP_MAX:
        raise RecoveryError(
            f"the log of {survivor.source} ends at entry {survivor.last.index} of term {survivor.last.term}, the last"
            " term, so no election is possible: add `--reset term`, so that the new farm begins at term 1, or cut the"
            " log before the first entry of this term (`--cut-after INDEX`)"
        )


def _created_alone(survivor: FarmOnDisk, node_id: bytes, reset: Reset) -> FormationState:
    log_time_ms = survivor.farm.log_time_ms if reset.log_time_ms is None else reset.log_time_ms
    promise = Promise((node_id,), log_time_ms, SystemRandom().randbytes(NONCE_BYTES))
    return FormationState(promise=promise, founding=founding_of({node_id: promise}))


async def carry_out(plan: RecoveryPlan) -> None:
    """Make the new cluster; raise RecoveryError."""
    state = await _first_state(plan)
    await trio.to_thread.run_sync(_exchange if plan.identity is None else _make, plan, state)


async def _first_state(plan: RecoveryPlan) -> bytes:
    async def image() -> AsyncIterator[bytes]:
        yield plan.survivor.image

    snapshot = await decode_farm(image())
    snapshot.farm = recovered(plan.survivor.farm, plan.node_id, plan.reset)
    if plan.reset.term:
        sessions = SessionTable.load(snapshot.sessions, SESSION_LIMITS)
        sessions.change_results(result_of_first_term)
        snapshot.sessions = sessions.dump()
    log_time_ms = plan.reset.log_time_ms
    if log_time_ms is not None:
        snapshot.moment_times_ms = [min(each, log_time_ms) for each in snapshot.moment_times_ms]
        # The session table depends on log time, too. It is dropped completely, and with this floor no earlier request
        # is executed again.
        sessions = SessionTable(SESSION_LIMITS)
        sessions.floor = plan.survivor.last.index
        snapshot.sessions = sessions.dump()
        reqids = Reqids.load(snapshot.reqids)
        reqids.turn_back(log_time_ms, plan.survivor.farm.log_time_ms - log_time_ms)
        reqids.expire_until(log_time_ms // 1000 + AHEAD_S)
        snapshot.reqids = reqids.dump()
    return b"".join(encode_farm(snapshot))


def _make(plan: RecoveryPlan, state: bytes) -> None:
    """Make the state directory of a new node; its identity is written last."""
    state_dir, identity = plan.state_dir, plan.identity
    try:
        state_dir.mkdir(mode=0o700, parents=True)
        _make_storage(state_dir / RAFT_DIRECTORY, plan, state)
        replace_file(state_dir / FORMATION_FILE, encode_formation_state(plan.formation))
        replace_file(state_dir / STORAGE_NOTE, STORAGE_NOTE_TEXT)
        if identity is not None:
            keep_generation(state_dir, identity.node_id, _GENERATION)
            save_identity(state_dir, identity)
        sync_directory(state_dir)
    except (StateError, StorageError, OSError, OutOfSpaceError) as error:
        raise RecoveryError(
            f"the new cluster could not be created in {state_dir}: {error}. Remove that directory, free or repair the"
            " disk, then run the command again"
        ) from error


def _exchange(plan: RecoveryPlan, state: bytes) -> None:
    """Replace the old storage by the new cluster's, step by step.

    A crash between two steps leaves `formation.recovering.json`. A node refuses to start with it, because the log could
    belong to either cluster. `recover` may be called again at any point. Until the last step `formation.json` is the
    old one. So the next call finds the old log, even in `raft.of-…`, and starts from scratch. If the new founding were
    written earlier, that call would read the old log with the new founders, and mistake one server for another.
    """
    state_dir, storage, making = plan.state_dir, plan.state_dir / RAFT_DIRECTORY, plan.state_dir / MAKING
    aside, recovery_file = plan.aside or state_dir, plan.state_dir / RECOVERY_FILE_NAME
    old = storage_of(state_dir, plan.survivor.cluster_id)
    try:
        # Held during the move: a node that starts then finds it in use.
        directory = Directory(old)
    except (StorageError, OSError) as error:
        raise RecoveryError(f"{state_dir}: {error}") from error
    try:
        rmtree(making, ignore_errors=True)
        _make_storage(making, plan, state)
        replace_file(recovery_file, encode_formation_state(plan.formation))
        if old == storage:
            storage.rename(aside)
        elif storage.exists():
            # An earlier call was interrupted after its second move and left this directory; a node has never opened it.
            rmtree(storage)
        for name in (ADMISSIONS_FILE, COMMIT_FILE):
            (state_dir / name).unlink(missing_ok=True)
        if plan.reset.second:
            (state_dir / PUBLISHED_FILE).unlink(missing_ok=True)
        if plan.reset.era:
            reset_stored_era(state_dir)
        replace_file(state_dir / STORAGE_NOTE, STORAGE_NOTE_TEXT)
        making.rename(storage)
        sync_directory(state_dir)
        recovery_file.rename(state_dir / FORMATION_FILE)
        sync_directory(state_dir)
    except (StateError, StorageError, OSError, OutOfSpaceError) as error:
        raise RecoveryError(
            f"the new cluster could not be created in {state_dir}: {error}. Free or repair the disk, then run the"
            " command again"
        ) from error
    finally:
        directory.close()


def _make_storage(path: Path, plan: RecoveryPlan, state: bytes) -> None:
    """Make a storage with one snapshot, at the end of the old log."""
    tuning = StorageOptions(segment_bytes=_SEGMENT_BYTES)
    disk, recovery = open_directory(path, plan.node_id, _GENERATION, tuning)
    try:
        group = [Persist(number=1, hard_state=HardState(plan.term, None))]
        group += [
            Persist(number=number, snapshot=change) for number, change in enumerate(_changes(plan, state), start=2)
        ]
        for persist in group:
            disk.perform_all(recovery.storage.plan((persist,)))
            recovery.storage.done()
        disk.perform_all(recovery.storage.plan_close())
    finally:
        disk.close()


def _changes(plan: RecoveryPlan, state: bytes) -> Iterator[SnapshotChange]:
    survivor = plan.survivor
    old_id = raft_id_of(survivor.farm.admitted, plan.node_id)
    endpoint = next((each.endpoint for each in survivor.configuration.voters if each.server_id == old_id), "")
    writer = ImageWriter(plan.begins_at, Configuration((Server(SURVIVOR_ID, endpoint or UNKNOWN_ENDPOINT),)))
    image = writer.begin() + writer.blocks(state) + writer.end()
    for offset in range(0, len(image), _CHUNK_BYTES):
        yield StoreChunk(plan.begins_at, offset, image[offset : offset + _CHUNK_BYTES])
    yield Install(writer.description)
