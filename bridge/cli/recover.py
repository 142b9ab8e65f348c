"""`garlicfarm backup`, `restore`, `recover`: save the replicated state of a farm, and create a farm from it.

A backup does not contain hard state, an identity or keys (`bridge.wire.keys.backup`). A restored node is therefore a
new node: it has a new identity, a new Raft id and an empty storage, which the farm fills. The file names the farm, so
the node waits for its admission and never creates another farm.

`recover` is the last resort of a farm that permanently lost the majority of its voters. It turns one survivor's state
directory into a new cluster with this server only, and the other nodes join again. If every directory is lost, it uses
a backup. Entries acknowledged only by the other servers are lost. If the old majority still runs, it is a separate farm
from then on. So the command prints the loss and prompts. The node must not run.

A log with harmful entries, for example from an attacker, can be cut (`--cut-after`), and its numbers can be reset
(`--reset`). Such entries contain an unsupported feature level, a log time or a term at its maximum, or publication
times in the far future.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
import trio
from msgspec.structs import replace

from bridge.api.outputs import BackupOutput, CutView, RecoveryOutput, RestoreOutput
from bridge.api.printable import clock_text
from bridge.cli.failure import confirm, fail, failures
from bridge.cli.founding.starting import as_reader
from bridge.cli.node_queries import node_option, query_current
from bridge.cli.options import IntegerRange, NamedPath, directory_path, json_option, yes_option
from bridge.cli.printing import echo, end_with_json
from bridge.core.formation.founding import FormationState, Founding
from bridge.core.membership.eviction import LAST_ERA
from bridge.core.state.recovery import FIRST_TERM, Reset, refused_until_s
from bridge.node.control.client import ControlClient
from bridge.node.events.event_log import clock_ms
from bridge.node.membership.forming import FILE_NAME as FORMATION_FILE
from bridge.node.offline.recovering import (
    RecoveryError,
    RecoveryPlan,
    carry_out,
    plan_recovery,
    plan_recovery_of_backup,
)
from bridge.node.offline.state_reading import Cut, StateReadingError, read_directory, read_state
from bridge.node.security.farm_keys import with_stored_keys
from bridge.node.security.key_files import KeyFileError, load_farm_key, replace_farm_key
from bridge.node.security.local_trust import UntrustedPathError, make_state_directory
from bridge.node.settings.places import node_places
from bridge.wire.keys.backup import Backup, BackupError, decode_backup, encode_backup
from bridge.wire.membership.formation_state import encode_formation_state
from consensus import MAX_NUMBER
from consensus.storage import access_advice, replace_file, sync_directory
from gossip import StateError

SUFFIX = ".backup"
AHEAD_MS = 3_600_000
"""A stored time that leads this machine's clock by more is probably wrong: no correct clock drifts so far."""

REJOIN = (
    "each other node: stop garlicfarm there if it runs, `mv STATE_DIR STATE_DIR.old`, copy to it the key file"
    " that `garlicfarm keys export FILE` writes on the started node, and start it again; it joins as a new server. It"
    " may keep its name. If STATE_DIR.old contains other key files, copy these back before the start"
)


@click.command()
@click.option(
    "--from",
    "source",
    required=True,
    metavar="DIR|BACKUP",
    type=click.Path(path_type=Path, exists=True),
    help="The state directory of a surviving node, which must not run; or a backup, if every directory is lost.",
)
@click.option(
    "--state-dir", "new", type=directory_path, help="With a backup: the state directory to create, for a new node."
)
@click.option(
    "--farm-key",
    "key_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The farm key file; the command writes the new cluster id and the keys of the state directory into it.",
)
@click.option(
    "--cut-after",
    metavar="INDEX",
    type=IntegerRange(1, MAX_NUMBER),
    help="Keep the log up to this entry, and drop all later entries.",
)
@click.option(
    "--reset",
    "resets",
    multiple=True,
    type=click.Choice(["term", "time", "second", "era"]),
    help="Reset a number. term: to 1. time: log time to this machine's clock. second: publication times at the next"
    " publication. era: the key era to 0 (with --farm-key). May be given several times.",
)
@click.option("--dry-run", is_flag=True, help="Print the plan, and do not change anything.")
@yes_option
@json_option
def recover(
    *,
    source: Path,
    new: Path | None,
    key_file: Path | None,
    cut_after: int | None,
    resets: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Create a new farm from one surviving node after a majority is permanently lost.

    Use a state directory if there is one: its log is newer than any backup.
    """
    if as_json and not (yes or dry_run):
        fail("--json cannot prompt: add --yes if the other voters are permanently lost")
    if "era" in resets and key_file is None:
        fail("--reset era needs --farm-key FILE: the farm key file holds the era as well")
    log_time_ms = clock_ms() if "time" in resets else None
    reset = Reset("term" in resets, log_time_ms, "second" in resets, "era" in resets)
    with failures(RecoveryError, KeyFileError, StateError):
        places = node_places()
        with as_reader(places, source):
            plan = _plan(source, new, cut_after, reset)
        as_owner = partial(as_reader, places, plan.state_dir)
        farm_key = None
        if key_file is not None:
            with as_reader(places, key_file):
                farm_key = load_farm_key(key_file)
            with as_owner():  # Unusable keys are reported before the first change.
                with_stored_keys(farm_key, plan.state_dir)
        if dry_run:
            _show(plan, as_json=as_json)
            return
        if not as_json:
            _explain(plan)
        confirm(_question(plan), yes=yes)
        if key_file is not None and farm_key is not None:
            # A file that cannot be replaced ends the command here, before the cluster is created.
            replace_farm_key(key_file, farm_key, reader=as_reader(places, key_file))
        with as_owner():
            trio.run(carry_out, plan)
        if key_file is not None and farm_key is not None:
            era = 0 if reset.era else farm_key.era
            filed = replace(farm_key, cluster_id=plan.new_cluster_id, era=era)
            with as_owner():  # `carry_out` can reset the era of the stored keys.
                filed = with_stored_keys(filed, plan.state_dir)
            replace_farm_key(key_file, filed, earlier=reset.era, reader=as_reader(places, key_file))
    end_with_json(_output(plan, recovered=True), as_json=as_json)
    echo(f"Created cluster {plan.new_cluster_id.hex()}. Start the node in {plan.state_dir}; it is the only voter.")
    if plan.aside is None:
        echo("It is a new node: give it the current farm key file, its signing key and its leaves.")
    else:
        echo(f"The old storage was kept as {plan.aside}.")
    if key_file is not None:
        echo(f"{key_file} names the new cluster.")
    echo(f"Then, {REJOIN}.")


def _show(plan: RecoveryPlan, *, as_json: bool) -> None:
    end_with_json(_output(plan, recovered=False), as_json=as_json)
    _explain(plan)
    echo("Nothing was changed.")


def _plan(source: Path, new: Path | None, cut_after: int | None, reset: Reset) -> RecoveryPlan:
    if source.is_dir():
        if new is not None:
            fail("--state-dir needs a backup; a state directory becomes the new farm in place")
        return trio.run(plan_recovery, source.absolute(), cut_after, reset)
    if new is None:
        fail(f"{source} is a file: if it is a backup, name the state directory to create with --state-dir")
    if cut_after is not None:
        fail("--cut-after needs a state directory: a backup contains the state at the end of the log, not the log")
    return trio.run(plan_recovery_of_backup, source, new.absolute(), reset)


def _question(plan: RecoveryPlan) -> str:
    survivor, others, losses = plan.survivor, " and ".join(plan.left_behind), list[str]()
    if plan.identity is not None:
        losses.append(f"all entries after entry {survivor.last.index}, the last one in the backup")
    elif others:
        losses.append("all entries that only they acknowledged")
    if survivor.cut is not None:
        first, last = survivor.cut.first, survivor.cut.last
        losses.append(f"the survivor's entries {first} to {last}" if first < last else f"the survivor's entry {first}")
    without = f" without {others}" if others else ""
    loss = f", and lose {' and '.join(losses)}" if losses else ""
    return f"Create a new cluster from {survivor.source}{without}{loss}?"


def _explain(plan: RecoveryPlan) -> None:
    survivor = plan.survivor
    echo(f"{survivor.source} belongs to cluster {survivor.cluster_id.hex()}.")
    if survivor.cut is None:
        echo(f"Its log ends at entry {survivor.last.index} of term {survivor.last.term}; all entries are kept.")
    else:
        cut, last = survivor.cut, survivor.last
        kinds = ", ".join(f"{count} {kind}" for kind, count in cut.kinds)
        echo(f"Its log is kept up to entry {last.index} of term {last.term}. Dropped: {_entries(cut)}: {kinds}.")
    for line in _numbers(plan):
        echo(line)
    if plan.left_behind:
        others = ", ".join(plan.left_behind)
        echo(f"Servers left out: {others}. Entries acknowledged only by them are lost, and they can never rejoin with")
        echo("their present state. If a majority of them still works, start them instead.")


def _entries(cut: Cut) -> str:
    count = cut.last - cut.first + 1
    return f"{count} entries, {cut.first} to {cut.last}" if count > 1 else f"1 entry, {cut.first}"


def _numbers(plan: RecoveryPlan) -> Iterator[str]:
    """Yield the numbers that are reset, and the numbers that may need a reset."""
    farm, reset, now_ms = plan.survivor.farm, plan.reset, clock_ms()
    last_s = max((each.publication.published_s for each in farm.masters.values() if each.publication), default=0)
    if reset.term:
        yield f"The term is reset from {plan.survivor.last.term} to {FIRST_TERM}."
    if reset.log_time_ms is not None:
        yield f"Log time is reset from {_text(farm.log_time_ms)} to {_text(reset.log_time_ms)}."
    elif farm.log_time_ms > now_ms + AHEAD_MS:
        yield (
            f"Log time is {_text(farm.log_time_ms)}, far ahead of this machine's clock. If it is wrong, add `--reset"
            " time`: without it no node can publish until then."
        )
    if reset.era:
        yield f"The era of the farm's keys is reset from {farm.rekeying.era} to 0, also in the farm key file."
    elif farm.rekeying.era >= LAST_ERA:
        yield "The farm's keys are in the last era, and cannot be replaced again: add `--reset era`."
    until_s = refused_until_s(farm, now_ms // 1000)
    if reset.second:
        yield "The time of the last publication of each master is dropped."
        if until_s is not None:
            yield (
                "Routers that have a structure with a later time refuse the new structures until"
                f" {_text(until_s * 1000)} at the latest. If a node writes structures to a directory, remove the old"
                " files."
            )
    elif last_s * 1000 > now_ms + AHEAD_MS:
        yield (
            f"The last publication has the time {_text(last_s * 1000)}, far ahead of this machine's clock. If it is"
            " wrong, add `--reset second`: without it all further publications need later times."
        )


def _text(time_ms: int) -> str:
    return clock_text(time_ms, dated=True)


def _output(plan: RecoveryPlan, *, recovered: bool) -> RecoveryOutput:
    survivor, cut = plan.survivor, plan.survivor.cut
    return RecoveryOutput(
        recovered=recovered,
        state_directory=str(plan.state_dir),
        old_cluster_id=survivor.cluster_id.hex(),
        new_cluster_id=plan.new_cluster_id.hex(),
        node_id=plan.node_id.hex(),
        last_index=survivor.last.index,
        last_term=plan.begins_at.term,
        cut=None if cut is None else CutView(cut.first, cut.last, dict(cut.kinds)),
        log_time_ms=survivor.farm.log_time_ms if plan.reset.log_time_ms is None else plan.reset.log_time_ms,
        routers_refuse_until=refused_until_s(survivor.farm, clock_ms() // 1000) if plan.reset.second else None,
        left_behind=tuple(plan.left_behind),
        old_storage=None if plan.aside is None else str(plan.aside),
        rejoin=REJOIN,
    )


# -- backup and restore ------------------------------------------------------------------------------------------------


@click.command()
@click.argument("target", metavar="FILE|DIR", type=NamedPath(path_type=Path))
@click.option(
    "--from",
    "source",
    type=directory_path,
    help="The state directory of a stopped node (default: query a running node).",
)
@node_option
@json_option
def backup(target: Path, source: Path | None, node: str | None, *, as_json: bool) -> None:
    """Save the replicated state of the farm, mode 0600. FILE must not exist; in a DIR the command chooses the name.

    The backup does not contain hard state, an identity or keys: keep the farm key file and the master key separately.
    """
    content = query_current(node, ControlClient.backup) if source is None else _of_directory(source)
    with failures(BackupError):
        made = decode_backup(content)
    path = target / _name(made) if target.is_dir() else target
    if path.exists():
        fail(f"{path} exists already and is not overwritten: move it away, or choose another name")
    try:
        replace_file(path, content)
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror or error}{access_advice(path, error)}")
    head = made.head
    end_with_json(
        BackupOutput(str(path), head.cluster_id.hex(), head.last.index, head.last.term, len(content)), as_json=as_json
    )
    echo(f"{path}: cluster {head.cluster_id.hex()} after entry {head.last.index}, {len(content)} bytes.")
    echo("It does not contain keys: keep the farm key file and the master key separately.")


def _of_directory(source: Path) -> bytes:
    with failures(StateReadingError):
        return encode_backup(trio.run(read_directory, source).backup)


def _name(made: Backup) -> str:
    head = made.head
    return f"garlicfarm-{head.cluster or head.cluster_id.hex()[:8]}-{head.last.index}{SUFFIX}"


@click.command()
@click.argument("source", metavar="BACKUP", type=click.Path(path_type=Path, exists=True))
@click.option("--state-dir", required=True, type=directory_path, help="State directory to create.")
@json_option
def restore(source: Path, state_dir: Path, *, as_json: bool) -> None:
    """Make the state directory of a new node from BACKUP: it joins the farm in BACKUP, under a new Raft id.

    BACKUP is a file, or the state directory of a stopped node. The farm must still exist; if it does not, `garlicfarm
    recover` creates a new farm from BACKUP. If an old version created the farm, nodes cannot verify it. Then `restore`
    continues its state in a new cluster, and this node is the first server.
    """
    with failures(StateReadingError):
        farm = trio.run(read_state, source)
    if farm.founding is None:
        _make_anew(source, state_dir, as_json=as_json)
        return
    _make(state_dir, farm.founding)
    end_with_json(RestoreOutput(str(state_dir), farm.cluster_id.hex(), farm.last.index), as_json=as_json)
    echo(f"{state_dir} belongs to cluster {farm.cluster_id.hex()}, not to a node yet.")
    echo("Start a node with it and with the current farm key file; the node gets a new identity and a new Raft id.")
    echo("If it keeps the name of a lost node, at a voter:  garlicfarm node approve NAME")


def _make(state_dir: Path, founding: Founding) -> None:
    """Make a directory that only names its farm: the node makes identity, generation and storage when it starts."""
    try:
        make_state_directory(state_dir)
        # The root of a file system may have its own directory.
        if any(each.name != "lost+found" for each in state_dir.iterdir()):
            fail(f"{state_dir} is not empty: name a new directory, which a restored node needs for itself")
        replace_file(state_dir / FORMATION_FILE, encode_formation_state(FormationState(known=founding)))
        sync_directory(state_dir)
    except UntrustedPathError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{state_dir} cannot be created: {error.strerror or error}{access_advice(state_dir, error)}")


def _make_anew(source: Path, state_dir: Path, *, as_json: bool) -> None:
    """Create a new cluster with the state of a farm that no node can join any more."""
    with failures(RecoveryError):
        plan = trio.run(plan_recovery_of_backup, source.absolute(), state_dir.absolute())
        trio.run(carry_out, plan)
    cluster_id, survivor = plan.new_cluster_id.hex(), plan.survivor
    end_with_json(
        RestoreOutput(str(state_dir), cluster_id, survivor.last.index, survivor.cluster_id.hex()), as_json=as_json
    )
    echo(
        f"{source} belongs to cluster {survivor.cluster_id.hex()}, which an old version created. Nodes cannot verify"
        " it."
    )
    echo(f"{state_dir} continues its state in a new cluster: {cluster_id}. Do this on one node only.")
    echo("Kept: log time, publications, weights, exclusions and evictions. Left out: all other")
    echo("servers, which join again, with empty state directories.")
    echo("Start a node with it and with the farm key file; then, for the others:  garlicfarm keys export FILE")
