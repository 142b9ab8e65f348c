"""`garlicfarm kraft format` and `random-uuid`: the directory of a KRaft server, as `kafka-storage` makes it.

Options and rules are Kafka's. If the settings of a controller do not list voters, the command requires one of three
options. They create a quorum alone, create one with others, or join one. A wrong default would create a second quorum
under the same cluster id.
"""

from pathlib import Path
from typing import Any

import click

from bridge.api.cluster_outputs import KraftFormatOutput
from bridge.cli.failure import fail, fail_to_read, failures
from bridge.cli.kraft.options import config_option, needs_kafka, read_settings, set_option
from bridge.cli.options import json_option
from bridge.cli.printing import echo, end_with_json
from consensus.protocols import kafka
from consensus.protocols import kraft as protocol

_ONE_OF_THREE = (
    "the settings do not have controller.quorum.voters, so give one of:\n--standalone                     this server"
    " creates a quorum alone\n--initial-controllers LIST       the servers of LIST create one (--help shows its"
    " form)\n--no-initial-controllers         this server joins an existing quorum"
)


@click.command("format")
@config_option
@set_option
@click.option("--cluster-id", "-t", metavar="ID", help="The quorum's id, the same for all its servers.")
@click.option("--random-cluster-id", is_flag=True, help="Generate the id, for the first server of a quorum.")
@click.option("--standalone", "-s", is_flag=True, help="This server creates a quorum alone.")
@click.option(
    "--initial-controllers",
    "-I",
    metavar="ID@HOST:PORT:DIRECTORY-ID,…",
    help="These servers, including this one, create a quorum; `kraft random-uuid` makes directory ids.",
)
@click.option("--no-initial-controllers", "-N", is_flag=True, help="This server joins an existing quorum.")
@click.option(
    "--add-scram",
    "-S",
    metavar="MECHANISM=[name=…,password=…]",
    multiple=True,
    help="A user that may log in at a SASL listener; may be given several times. Other users of this machine can read a"
    " command line: --add-scram-file keeps passwords out of it.",
)
@click.option(
    "--add-scram-file",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Like --add-scram, from a file with one user on each line; - is standard input.",
)
@click.option("--ignore-formatted", "-g", is_flag=True, help="Accept a formatted directory, and do not change it.")
@json_option
def format_command(
    *, config: Path, changes: tuple[str, ...], ignore_formatted: bool, as_json: bool, **given: Any
) -> None:
    """Make the directory of a KRaft server, as `kafka-storage format` does.

    The directory identifies the cluster and the server. It contains the first voters if the settings do not list them.
    """
    known = (protocol.SettingsError, protocol.QuorumDirectoryError)
    with needs_kafka(), failures(*known):
        _, others = protocol.split_settings(read_settings(config, changes))
        settings = protocol.voter_settings(others)
        if ignore_formatted and (settings.log_dir / protocol.META_FILE).exists():
            formatted = protocol.read_directory(settings)
            echo(f"{settings.log_dir} is already formatted; nothing was changed.", err=True)
        else:
            formatted = _format(settings, **given)
    output = KraftFormatOutput(
        str(formatted.path), formatted.cluster_id, formatted.node_id, kafka.uuid_text(formatted.directory_id)
    )
    end_with_json(output, as_json=as_json)
    echo(f"{output.directory}: cluster {output.cluster_id}, node {output.node_id}, directory {output.directory_id}")


def _format(
    settings: "protocol.VoterSettings",
    *,
    cluster_id: str | None,
    random_cluster_id: bool,
    standalone: bool,
    initial_controllers: str | None,
    no_initial_controllers: bool,
    add_scram: tuple[str, ...],
    add_scram_file: Path | None,
) -> "protocol.QuorumDirectory":
    if (cluster_id is None) != random_cluster_id:
        fail("name the cluster: --cluster-id ID, as on the other servers, or --random-cluster-id for a new cluster")
    chosen = sum((standalone, initial_controllers is not None, no_initial_controllers))
    if chosen > 1:
        fail("--standalone, --initial-controllers and --no-initial-controllers exclude each other: give one of them")
    if settings.is_dynamic and not chosen:
        fail(_ONE_OF_THREE)
    initial = () if initial_controllers is None else protocol.parse_initial_voters(initial_controllers)
    return protocol.format_directory(
        settings,
        cluster_id or kafka.uuid_text(protocol.new_uuid()),
        standalone=standalone,
        initial=initial,
        users=protocol.scram_users((*add_scram, *_listed_users(add_scram_file))),
    )


def _listed_users(file: Path | None) -> tuple[str, ...]:
    if file is None:
        return ()
    try:
        with click.open_file(str(file), encoding="utf-8") as lines:
            return tuple(line.strip() for line in lines if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        fail_to_read(file, error)


@click.command("random-uuid")
def random_uuid() -> None:
    """Print a new id, for a cluster or a directory, as `kafka-storage random-uuid` does."""
    with needs_kafka():
        echo(kafka.uuid_text(protocol.new_uuid()))
