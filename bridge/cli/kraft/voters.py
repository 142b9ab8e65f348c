"""`garlicfarm kraft add-voter` and `remove-voter`: change the voters, by AddRaftVoter and RemoveRaftVoter (KIP-853).

    describe ─▶ is it so already? ─▶ done     else request it from the leader, which answers after the commitment
                                              no answer in time ─▶ describe: is it committed nevertheless?

A change can be repeated: if it is already done, the command reports that, with exit code 0. A removed voter continues
as an observer. The quorum does not know a server that is neither voter nor observer, so its removal is refused.
"""

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import click
import trio

from bridge.api.cluster_outputs import KraftChangeOutput
from bridge.cli.failure import confirm, fail, failures
from bridge.cli.kraft.options import Quorum, needs_kafka, quorum_options, read_settings
from bridge.cli.options import IntegerRange, file_path, json_option, yes_option
from bridge.cli.printing import echo, end_with_json
from consensus.protocols import kafka
from consensus.protocols import kraft as protocol

_LOOKS = 12
_LOOK_AGAIN_S = 0.25


@click.command("add-voter")
@click.option("--config", "-c", type=file_path, metavar="FILE", help="The settings of the new voter.")
@click.option("--voter-id", type=IntegerRange(0), help="The node.id of the new voter, if --config is not given.")
@click.option("--voter-directory-id", metavar="UUID", help="Its directory.id, as in its meta.properties.")
@click.option("--listener", metavar="NAME://HOST:PORT", help="The address of its listener.")
@quorum_options
@json_option
def add_voter(
    quorum: Quorum,
    *,
    config: Path | None,
    voter_id: int | None,
    voter_directory_id: str | None,
    listener: str | None,
    as_json: bool,
) -> None:
    """Turn an observer of the quorum into a voter, and wait until the change is committed.

    Start the server first: it must have caught up. On its own machine, --config replaces the other options.
    """
    with needs_kafka(), failures(protocol.SettingsError, protocol.QuorumDirectoryError, kafka.KafkaWireError):
        if config is not None:
            _, others = protocol.split_settings(read_settings(config, ()))
            settings = protocol.voter_settings(others)
            directory = protocol.read_directory(settings)
            newcomer, listeners = (settings.node_id, directory.directory_id), settings.advertised
        elif voter_id is None or voter_directory_id is None or listener is None:
            fail("name the server: --config FILE, or --voter-id, --voter-directory-id and --listener")
        else:
            newcomer = (voter_id, kafka.uuid_of_text(voter_directory_id))
            listeners = protocol.endpoints("--listener", listener)
    done = quorum.ask(lambda client: _add(client, *newcomer, listeners, quorum.timeout_s))
    _print(done, as_json=as_json)


@click.command("remove-voter")
@click.option("--voter-id", type=IntegerRange(0), required=True, help="The node.id of the voter.")
@click.option("--voter-directory-id", metavar="UUID", help="Its directory.id (default: as the quorum has it).")
@quorum_options
@json_option
@yes_option
def remove_voter(quorum: Quorum, *, voter_id: int, voter_directory_id: str | None, yes: bool, as_json: bool) -> None:
    """Turn a voter into an observer, and wait until the change is committed. The leader may remove itself."""
    with needs_kafka(), failures(kafka.KafkaWireError):
        directory = None if voter_directory_id is None else kafka.uuid_of_text(voter_directory_id)
    if not yes:
        quorum.ask(lambda client: _check_removal(client, voter_id, directory))
    confirm(f"Remove voter {voter_id} from the quorum, so that it becomes an observer without a vote?", yes=yes)
    done = quorum.ask(lambda client: _remove(client, voter_id, directory, quorum.timeout_s))
    _print(done, as_json=as_json)


def _print(done: KraftChangeOutput, *, as_json: bool) -> None:
    end_with_json(done, as_json=as_json)
    voters = ", ".join(map(str, done.voters))
    echo(f"{'Committed' if done.changed else 'It was so already'}: the voters are {voters}.")


async def _add(
    client: "protocol.QuorumClient",
    voter_id: int,
    directory_id: UUID,
    listeners: "Sequence[protocol.Endpoint]",
    timeout_s: float,
) -> KraftChangeOutput:
    before = await client.describe()
    directory_ids = {each.node_id: each.directory_id for each in before.voters}
    if directory_ids.get(voter_id) == directory_id:
        return _output(before, changed=False)
    if voter_id in directory_ids:
        fail(
            f"voter {voter_id} is in the quorum with another directory, {kafka.uuid_text(directory_ids[voter_id])}: if "
            f"that one is lost, remove it first by `kraft remove-voter --voter-id {voter_id}`"
        )
    answer = await client.add_voter(before.cluster_id, voter_id, directory_id, listeners, round(timeout_s * 1000))
    return await _committed(client, answer, (voter_id, directory_id), is_voter=True)


async def _remove(
    client: "protocol.QuorumClient", voter_id: int, directory_id: UUID | None, timeout_s: float
) -> KraftChangeOutput:
    before = await _check_removal(client, voter_id, directory_id)
    found = _named(before.voters, voter_id, directory_id)
    if found is None:
        return _output(before, changed=False)
    key = (voter_id, found.directory_id)
    answer = await client.remove_voter(before.cluster_id, *key, round(timeout_s * 1000))
    return await _committed(client, answer, key, is_voter=False)


async def _check_removal(
    client: "protocol.QuorumClient", voter_id: int, directory_id: UUID | None
) -> "protocol.QuorumDescription":
    """Return the state of the quorum; end the command with the reason if it does not have this server."""
    state = await client.describe()
    if _named((*state.voters, *state.observers), voter_id, directory_id) is None:
        fail(_unknown(state, voter_id))
    return state


def _named(
    replicas: "Sequence[protocol.QuorumReplica]", node_id: int, directory_id: UUID | None
) -> "protocol.QuorumReplica | None":
    """Return the replica of this id, and of this directory if one is given; None if it does not exist."""
    return next(
        (each for each in replicas if each.node_id == node_id and directory_id in (None, each.directory_id)), None
    )


def _unknown(state: "protocol.QuorumDescription", voter_id: int) -> str:
    """Return the reason why the voter cannot be removed, and the remedy."""
    other = _named(state.voters, voter_id, None)
    if other is not None:
        return (
            f"voter {voter_id} has another directory, {kafka.uuid_text(other.directory_id)}: leave out "
            "--voter-directory-id to remove it"
        )
    voters = ", ".join(str(each.node_id) for each in state.voters)
    return (
        f"server {voter_id} is not in the voter set: the voters are {voters}. Name one of them; if {voter_id} was"
        " removed before and is stopped, the removal is complete"
    )


async def _committed(
    client: "protocol.QuorumClient", answer: "protocol.ChangeAnswer", key: tuple[int, UUID], *, is_voter: bool
) -> KraftChangeOutput:
    """Return the voters after the change, or end the command with the leader's text."""
    if answer.error_code not in (kafka.ErrorCode.NONE, kafka.ErrorCode.REQUEST_TIMED_OUT):
        fail(f"the quorum refuses: {answer.text or answer.name}")
    for _ in range(_LOOKS):
        after = await client.describe()
        if (key in {(each.node_id, each.directory_id) for each in after.voters}) is is_voter:
            break
        await trio.sleep(_LOOK_AGAIN_S)
    else:
        fail(
            f"not committed in time: {answer.text or answer.name}\n"
            "It may still be committed: see `kraft describe`, and repeat this command"
        )
    return _output(after, changed=True)


def _output(state: "protocol.QuorumDescription", *, changed: bool) -> KraftChangeOutput:
    return KraftChangeOutput(changed, state.leader_id, tuple(each.node_id for each in state.voters))
