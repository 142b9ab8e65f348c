"""`garlicfarm pipeline generate`: writes the log of a fictional farm as the state directory of a stopped node.

The log's entries are signed like entries of a real farm. The signing keys are derived from the seed of the load model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bridge.node.offline.stored_farm import StoredFarmError
from bridge.node.offline.stored_farm_writer import StoredFarmWriter
from pipeline.feedback.client_key import node_id_of, signed
from pipeline.load_model import EPOCH_MS, LoadModel
from pipeline.source.log_client import FarmLogError

PROGRESS_EVERY = 100_000


@dataclass(frozen=True, slots=True)
class Generated:
    """The counts of a written log."""

    entries: int
    reports: int
    hostile: int
    leader_changes: int


def generate(directory: Path, model: LoadModel, progress: Callable[[int], None] = lambda _: None) -> Generated:
    """Write the whole log of `model`; call `progress` periodically with the number of entries. Raise FarmLogError."""
    nonce = sha256(f"{model.seed} {model.routers} {model.days}".encode()).digest()[:16]
    keys = _keys(model)
    ids = [node_id_of(keys[number]) for number in model.voters]
    members = [(server_id, f"tcp://router-{server_id}.invalid:7669") for server_id in model.voters]
    try:
        with StoredFarmWriter(directory, ids, EPOCH_MS, nonce) as writer:
            last, proven = b"", b""
            for number, entry in enumerate(model.entries(), start=1):
                if entry.value is None:
                    writer.append_configuration(entry.term, members)
                elif entry.author is None:
                    writer.append(entry.term, entry.value)
                else:
                    # A repeated entry keeps the signature of the first copy, so both have the same bytes.
                    if entry.value != last:
                        last, proven = entry.value, signed(entry.value, keys[entry.author], writer.cluster_id, number)
                    writer.append(entry.term, proven)
                if number % PROGRESS_EVERY == 0:
                    progress(number)
    except StoredFarmError as error:
        raise FarmLogError(str(error)) from error
    return Generated(writer.last_index, model.reports, model.hostile, model.leader_changes)


def _keys(model: LoadModel) -> dict[int, Ed25519PrivateKey]:
    """Return the identity of each router: founders have their Raft ids in order of their node ids."""
    made = [
        Ed25519PrivateKey.from_private_bytes(sha256(f"{model.seed} identity {number}".encode()).digest())
        for number in range(1, model.routers + 1)
    ]
    founders = sorted(made[: len(model.voters)], key=node_id_of)
    return dict(enumerate([*founders, *made[len(founders) :]], start=1))
