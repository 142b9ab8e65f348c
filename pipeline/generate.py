"""`garlicfarm pipeline generate`: writes the log of a made-up farm as the state directory of a stopped node."""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from bridge.node.stored_farm import StoredFarmError
from bridge.node.stored_farm_writer import StoredFarmWriter
from pipeline.load_model import EPOCH_MS, LoadModel
from pipeline.log_client import FarmLogError

TELL_EVERY = 100_000


@dataclass(frozen=True, slots=True)
class Generated:
    """What was written."""

    entries: int
    reports: int
    hostile: int
    leader_changes: int


def generate(directory: Path, model: LoadModel, tell: Callable[[int], None] = lambda _: None) -> Generated:
    """Writes the whole log of `model`; `tell` hears the number of entries now and then. Raises FarmLogError."""
    nonce = sha256(f"{model.seed} {model.routers} {model.days}".encode()).digest()[:16]
    ids = [sha256(f"{model.seed} node {number}".encode()).digest()[:8] for number in model.voters]
    members = [(server_id, f"tcp://router-{server_id}.invalid:7669") for server_id in model.voters]
    try:
        writer = StoredFarmWriter(directory, ids, EPOCH_MS, nonce)
        try:
            for number, entry in enumerate(model.entries(), start=1):
                if entry.value is None:
                    writer.append_configuration(entry.term, members)
                else:
                    writer.append(entry.term, entry.value)
                if number % TELL_EVERY == 0:
                    tell(number)
        finally:
            writer.close()
    except StoredFarmError as error:
        raise FarmLogError(str(error)) from error
    return Generated(writer.last_index, model.reports, model.hostile, model.leader_changes)
