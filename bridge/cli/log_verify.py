"""`garlicfarm log verify DIR`: whether what lies in a server's directory is sound, and if not, what to do."""

import sys
from pathlib import Path

import click

from bridge.api.outputs import StorageOutput
from bridge.cli.failure import fail
from bridge.cli.options import json_option
from bridge.cli.printing import echo, print_json
from bridge.node.security.local_trust import UntrustedPathError, check_state_directory
from consensus.storage import StorageVerdict, Verification, verify_storage

DAMAGED, NOTHING_TO_CHECK = 1, 2

_HEADS = {
    StorageVerdict.SOUND: "Sound.",
    StorageVerdict.REPAIRABLE: "Sound; the next start puts some things right by itself.",
    StorageVerdict.DAMAGED: "Damaged: a server refuses to start with it.",
    StorageVerdict.EMPTY: "Empty.",
    StorageVerdict.NOT_A_LOG: "Not the directory of a server's log.",
}
_LIVE = (
    "A process has this directory open and goes on writing. What is called sound is sound; what seems torn, missing or "
    "damaged may only be under way: stop the node and look again before you act."
)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@json_option
def verify(*, directory: Path, as_json: bool) -> None:
    """Check a server's log, hard state and snapshots on disk, changing nothing.

    DIR is the directory `raft` inside a node's state directory. Exit codes: 0 sound, or put right by the next start;
    1 damaged; 2 nothing to check there.
    """
    # A node's state directory is what people have at hand.
    place = directory / "raft" if (directory / "raft").is_dir() else directory
    try:
        check_state_directory(place)
        result = verify_storage(place)
    except UntrustedPathError as error:
        fail(str(error))
    except OSError as error:
        echo(f"{place} cannot be read: {error.strerror or error}. Give the directory of a server's log.", err=True)
        sys.exit(NOTHING_TO_CHECK)
    if as_json:
        print_json(_output(place, result))
    else:
        _tell(place, result)
    sys.exit(
        {StorageVerdict.DAMAGED: DAMAGED, StorageVerdict.EMPTY: 2, StorageVerdict.NOT_A_LOG: 2}.get(result.verdict, 0)
    )


def _tell(place: Path, result: Verification) -> None:
    echo(f"{place}: {_HEADS[result.verdict]}")
    if result.live:
        echo(f"  {_LIVE}")
    for line in result.found:
        echo(f"  {line}")
    for line in result.repairs:
        echo(f"  to be repaired: {line}")
    for line in result.faults:
        echo(f"  WRONG: {line}")


def _output(place: Path, result: Verification) -> StorageOutput:
    return StorageOutput(
        directory=str(place),
        verdict=result.verdict.value,
        live=result.live,
        entries=result.entries,
        first_index=result.first_index,
        last_index=result.last_index,
        last_term=result.last_term,
        segments=result.segments,
        snapshot_index=result.snapshot_index,
        found=tuple(result.found),
        repairs=tuple(result.repairs),
        faults=tuple(result.faults),
    )
