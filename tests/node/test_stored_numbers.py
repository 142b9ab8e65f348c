"""Every stored number loads again, and every module that stores a file is listed here.

If a writer accepts a number that the reader refuses, the node stops at its next start. That start may be long after the
entry or message with the number. So for each stored number, writer and reader must agree on the range.
"""

import ast
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trio
from msgspec.structs import replace

from bridge.core.formation.founding import CLOCK_LIMIT_MS, FormationState, Promise, founding_of
from bridge.node.raft.commit_store import read_commit_index, write_commit_index
from bridge.node.tasks.published_store import PublishedStore
from bridge.wire.keys.backup import Backup, BackupHead, decode_backup, encode_backup
from bridge.wire.keys.farm_key import farm_key_text, new_farm_key, parse_farm_key
from bridge.wire.membership.formation_state import decode_formation_state, encode_formation_state
from consensus import MAX_NUMBER, Configuration, HardState, LogId, Persist, Server
from consensus.core.model import Entry
from consensus.protocols.kraft.operators.quorum_directory import QuorumState, decode_state, encode_state
from consensus.storage import StorageOptions, open_directory
from consensus.storage.verification import StorageVerdict, verify_storage
from gossip.core.keyring import Keyring
from gossip.core.member import LAST_GENERATION, NodeId
from gossip.node.state_files import StateError, begin_generation, keep_generation, keep_keys, known_keyring
from tests.effort import each_case
from tests.node.test_state_reading import FOUNDING

ROOT = Path(__file__).parents[2]
EXTREMES = (-1, 0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 - 2, 2**53 - 1, 2**53, 2**60, 2**63 - 1, 2**63, 2**64)
NODE, MASTER = NodeId(bytes([1]) * 8), bytes(32)

WRITERS = {
    "bridge/connect/structure_keeper.py": "a signed structure, verified again by the reader",
    "bridge/cli/config.py": "settings of an operator, no received numbers",
    "bridge/cli/founding/new_files.py": "settings of an operator, no received numbers",
    "bridge/cli/options.py": "plots; settings of an operator, no received numbers",
    "bridge/cli/recover.py": "formation.json, backup",
    "bridge/node/control/access.py": "tokens, no numbers",
    "bridge/node/control/control_certificate.py": "certificates, no numbers",
    "bridge/node/detecting/node_file.py": "settings of an operator; ports of other files are checked",
    "bridge/node/detecting/proposal.py": "a password, no numbers",
    "bridge/node/detecting/switching.py": "no numbers: switches of i2pd and a password",
    "bridge/node/inviting/invitations.py": "invitations.json, whose numbers `test_invitations` reads again",
    "bridge/node/local/farm_files.py": "settings of a demonstration, no received numbers",
    "bridge/node/membership/admissions.py": "admissions.json, whose Raft ids come from bounded messages and entries",
    "bridge/node/membership/forming.py": "formation.json",
    "bridge/node/membership/last_addresses.py": "addresses.json, whose ports are checked",
    "bridge/node/membership/own_name.py": "a name, no numbers",
    "bridge/node/offline/recovering.py": "formation.json, the storage",
    "bridge/node/offline/stored_farm_writer.py": "formation.json, the storage",
    "bridge/node/raft/commit_store.py": "committed.json",
    "bridge/node/raft/storage_note.py": "raft-made, whose Raft id has at most ten digits",
    "bridge/node/router/router.py": "signed structures, never read",
    "bridge/node/security/key_files.py": "farm key; the other key files hold an operator's numbers",
    "bridge/node/tasks/published_store.py": "published.json",
    "consensus/net/tls.py": "certificates, no numbers",
    "consensus/protocols/kraft/operators/quorum_directory.py": "quorum-state; the other files hold settings",
    "consensus/protocols/zmq_raft/peer/open_peer.py": "a peer's name, no numbers",
    "consensus/storage/durable_file.py": "the definition of the storing functions",
    "gossip/node/state_files.py": "generation, keys; peers, whose ports are checked line by line",
}
"""Modules that store a whole file, and its content. The log and its snapshots are in `consensus/storage`."""
_STORING = frozenset({"replace_file", "write_durably"})


def storing_modules(root: Path) -> set[str]:
    """Return the modules that use or define a storing function."""
    found = set()
    for package in ("bridge", "gossip", "consensus"):
        for path in sorted((root / package).rglob("*.py")):
            text = path.read_text()
            if not any(name in text for name in _STORING):
                continue
            tree = list(ast.walk(ast.parse(text)))
            names = {each.id for each in tree if isinstance(each, ast.Name)}
            names |= {each.name for each in tree if isinstance(each, ast.alias | ast.FunctionDef)}
            if _STORING & names:
                found.add(path.relative_to(root).as_posix())
    return found


def test_modules_storing_files_are_listed() -> None:
    storing = storing_modules(ROOT)
    assert storing - set(WRITERS) == set(), "list it above, with a test below for each number"
    assert set(WRITERS) - storing == set()


def test_additional_storing_module_is_detected(tmp_path: Path) -> None:
    for package in ("bridge", "gossip", "consensus"):
        (tmp_path / package).mkdir()
    (tmp_path / "bridge" / "counts.py").write_text("def keep(path, n):\n    replace_file(path, b'%d' % n)\n")
    assert storing_modules(tmp_path) == {"bridge/counts.py"}


class _Refused(Exception):  # noqa: N818 - no error of a test
    """The writer's refusal of the number."""


@contextmanager
def write_phase() -> Iterator[None]:
    """Mark errors of the writer as refusals; a later error is the reader's refusal of a stored number."""
    try:
        yield
    except Exception as error:
        raise _Refused from error


def _committed(directory: Path, number: int) -> bool:
    with write_phase():
        write_commit_index(directory, number)
    return read_commit_index(directory) == number


def _published(directory: Path, number: int) -> bool:
    store = PublishedStore(directory)
    trio.run(store.note, bytes([1]) * 32, 7)
    trio.run(store.note, MASTER, number)
    again = PublishedStore(directory)
    return again.second(bytes([1]) * 32) == 7 and again.second(MASTER) == store.second(MASTER)


def _generation(directory: Path, number: int) -> bool:
    with write_phase():
        keep_generation(directory, NODE, number)
    try:
        return begin_generation(directory, NODE) == number + 1
    except StateError as error:
        return number == LAST_GENERATION and "starts as a new node" in str(error)


def _keyring_clock(directory: Path, number: int) -> bool:
    ring = dataclasses.replace(Keyring.of(b"1" * 32), used_at=number)
    with write_phase():
        keep_keys(directory, ring)
    return known_keyring(directory, ring.label) == ring


def _keyring_era(directory: Path, number: int) -> bool:
    ring = dataclasses.replace(Keyring.of(b"1" * 32), era=number)
    with write_phase():
        keep_keys(directory, ring)
    return known_keyring(directory, ring.label) == ring


def _farm_key_epoch(_: Path, number: int) -> bool:
    key = replace(new_farm_key(3), epoch=number)
    with write_phase():
        text = farm_key_text(key)
    return parse_farm_key(text) == key


def _farm_key_era(_: Path, number: int) -> bool:
    key = replace(new_farm_key(3), era=number)
    with write_phase():
        text = farm_key_text(key)
    return parse_farm_key(text) == key


def _promised_clock(_: Path, number: int) -> bool:
    with write_phase():
        promise = Promise((NODE,), number, FOUNDING.promised[0].nonce)
        state = FormationState(promise=promise, founding=founding_of({NODE: promise}))
        data = encode_formation_state(state)
    return decode_formation_state(data) == state


def _promise_alone(_: Path, number: int) -> bool:
    state = FormationState(promise=Promise((NODE,), number, FOUNDING.promised[0].nonce))
    with write_phase():
        data = encode_formation_state(state)
    return decode_formation_state(data) == state


def _backup_index(_: Path, number: int) -> bool:
    return _backed_up(LogId(number, 1), 0)


def _backup_term(_: Path, number: int) -> bool:
    return _backed_up(LogId(1, number), 0)


def _backup_epoch(_: Path, number: int) -> bool:
    return _backed_up(LogId(1, 1), number)


def _backed_up(last: LogId, epoch: int) -> bool:
    head = BackupHead(
        node_id=NODE,
        cluster_id=FOUNDING.cluster_id,
        founding=FOUNDING,
        configuration=Configuration((Server(1, "a"),)),
        last=last,
        made_at_ms=0,
        epoch=epoch,
    )
    backup = Backup(head, b"")
    with write_phase():
        data = encode_backup(backup)
    return decode_backup(data) == backup


def _quorum_epoch(_: Path, number: int) -> bool:
    state = QuorumState(1, number, None)
    with write_phase():
        line = encode_state(state)
    return decode_state(line) == state


def _term(directory: Path, number: int) -> bool:
    """Store a term in the hard state and in an entry."""
    storage, recovery = open_directory(directory / "raft", NODE, 1, StorageOptions(segment_bytes=64 * 1024))
    try:
        with write_phase():
            entry = Entry.command(number, b"{}")
            storage.perform_all(
                recovery.storage.plan(
                    (
                        Persist(
                            number=1, hard_state=HardState(number, None), truncate_from=None, first=1, entries=(entry,)
                        ),
                    )
                )
            )
        recovery.storage.done()
    finally:
        storage.close()
    assert verify_storage(directory / "raft").verdict is StorageVerdict.SOUND
    storage, recovery = open_directory(directory / "raft", NODE, 2, StorageOptions(segment_bytes=64 * 1024))
    storage.close()
    return recovery.hard_state.term == number and recovery.log.last == LogId(1, number)


RoundTrip = Callable[[Path, int], bool]
STORED: tuple[tuple[RoundTrip, int, int], ...] = (
    (_committed, 0, MAX_NUMBER),
    (_published, -(2**70), 2**70),
    (_generation, 1, LAST_GENERATION),
    (_keyring_clock, 0, 2**53 - 1),
    (_keyring_era, 0, 2**32 - 1),
    (_farm_key_epoch, 1, 2**53 - 1),
    (_farm_key_era, 0, 2**32 - 1),
    (_promised_clock, 0, CLOCK_LIMIT_MS - 1),
    (_promise_alone, 0, CLOCK_LIMIT_MS - 1),
    (_backup_index, 0, MAX_NUMBER),
    (_backup_term, 0, MAX_NUMBER),
    (_backup_epoch, 0, MAX_NUMBER),
    (_quorum_epoch, 0, 2**31 - 1),
    (_term, 1, MAX_NUMBER),
)
"""Round trips, each with the range that the writer accepts. Beyond it, the writer refuses or both accept."""


@each_case(("stored", "least", "most"), STORED, ids=[each[0].__name__[1:] for each in STORED])
@each_case("number", EXTREMES)
def test_number_is_stored_only_if_it_loads(
    stored: RoundTrip, least: int, most: int, number: int, tmp_path: Path
) -> None:
    try:
        assert stored(tmp_path, number)
    except _Refused:
        assert not least <= number <= most
