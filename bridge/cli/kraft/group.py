"""`garlicfarm kraft`: the group of commands for KRaft quorums."""

import click

from bridge.cli.help.lazy_group import LazyCommand, LazyGroup

COMMANDS = {
    "Commands": {
        "format": LazyCommand("bridge.cli.kraft.format:format_command", "Make the directory of a server."),
        "serve": LazyCommand("bridge.cli.kraft.serve:serve", "Run one server of a quorum: a voter or an observer."),
        "describe": LazyCommand("bridge.cli.kraft.describe:describe", "Show a quorum as its leader sees it."),
        "log": LazyCommand("bridge.cli.kraft.log:log", "Print committed records of the log."),
        "add-voter": LazyCommand("bridge.cli.kraft.voters:add_voter", "Turn an observer into a voter."),
        "remove-voter": LazyCommand("bridge.cli.kraft.voters:remove_voter", "Turn a voter into an observer."),
        "random-uuid": LazyCommand("bridge.cli.kraft.format:random_uuid", "Print a new id."),
    }
}


@click.group("kraft", cls=LazyGroup, sections=COMMANDS)
def kraft() -> None:
    """Run, watch and change a replicated log with the protocol KRaft, Kafka's Raft (KIP-595).

    A Garlic Farm server may be one voter in a quorum of Kafka's controllers. Options have the names of Kafka's tools.
    """
