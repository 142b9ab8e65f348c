"""The commands of operators and of the pipeline: the state machine executes or refuses them.

    exclusion, cost, factors    change the weights; leaves and publishers are chosen again immediately
    force                       marks the master until its next accepted publication
    client                      admits a client key, or removes it (`bridge.core.membership.client_keys`)
    removal                     deletes the server's report and ignores further ones
    correction                  sets log time back (`bridge.core.farm.log_time_correction`)

A change of weights is refused if it would leave a master without any leaf. An empty structure is never published, so
clients would use the excluded leaf until the previous structure ends.
"""

from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from bridge.core.farm.log_time_correction import LogTimeCorrected, SecondForgotten, correct
from bridge.core.log import records
from bridge.core.log.hashes import hash_of
from bridge.core.log.weights import CommandRefused, WeightsChange, exclude, set_cost, take_factors
from bridge.core.membership.client_keys import ClientChanged, change_client
from bridge.core.publishing.publisher_election import PublisherChanged, choose_again
from bridge.core.state.farm_state import FarmState, FarmTuning


class PublicationForced(Struct, frozen=True):
    """The publisher of `master` must publish it again."""

    master: str


class RemovalChanged(Struct, frozen=True):
    """An operator removed a server from the farm, or allowed it back."""

    server_id: int
    removed: bool


CommandChange = (
    PublisherChanged
    | PublicationForced
    | RemovalChanged
    | ClientChanged
    | WeightsChange
    | LogTimeCorrected
    | SecondForgotten
)


def apply_command(  # noqa: PLR0911 - one case per command
    state: FarmState, command: records.OperatorCommand, tuning: FarmTuning, author: bytes | None = None
) -> tuple[FarmState, list[CommandChange]]:
    """Return the state after a command, and the changes.

    A new row counts against the share of `author`; callers pass an author only from `BOUNDS_LEVEL` on.
    """
    weights, reweighed = state.weights, None
    change: WeightsChange | None
    match command:
        case records.Force(master):
            return _force(state, master)
        case records.Removal():
            return _remove(state, command, tuning)
        case records.ClientKey():
            clients, outcome = change_client(state.clients, state.admitted, command, author)
            return replace(state, clients=clients), [] if outcome is None else [outcome]
        case records.Correction():
            state, corrected = correct(state, command, tuning)
            return state, [*corrected]
        case records.Exclusion():
            weights, change = exclude(weights, command, author)
        case records.CostFactor():
            weights, change = set_cost(weights, command, author)
            reweighed = command.leaf_hash
        case records.Factors():
            weights, change = take_factors(weights, command, state.applied_index, state.log_time_ms, author)
        case _:
            assert_never(command)
    if change is None or isinstance(change, CommandRefused):
        return state, [] if change is None else [change]
    after, chosen = choose_again(replace(state, weights=weights), tuning, at_clock=False, reweighed=reweighed)
    emptied = [name for name, master in state.masters.items() if master.leaves and not after.masters[name].leaves]
    if emptied:
        reason = f"no leaf would remain for the master {hash_of(min(emptied))}.b32.i2p"
        return state, [CommandRefused("exclusion", reason)]
    return after, [change, *chosen]


def _force(state: FarmState, name: str) -> tuple[FarmState, list[CommandChange]]:
    master = state.masters.get(name)
    if master is None:
        return state, [CommandRefused("force", f"no server reports for the master {hash_of(name)}.b32.i2p")]
    masters = {**state.masters, name: replace(master, forced=True)}
    return replace(state, masters=masters), [PublicationForced(name)]


def _remove(state: FarmState, command: records.Removal, tuning: FarmTuning) -> tuple[FarmState, list[CommandChange]]:
    if command.server_id not in state.admitted:
        return state, [CommandRefused("removal", f"no server of this farm has the Raft id {command.server_id}")]
    if (command.server_id in state.removed) == command.removed:
        return state, []
    others = {each for each in state.removed if each != command.server_id}
    removed = tuple(sorted(others | {command.server_id} if command.removed else others))
    servers = {server_id: each for server_id, each in state.servers.items() if server_id not in removed}
    state, chosen = choose_again(replace(state, removed=removed, servers=servers), tuning, at_clock=False)
    return state, [RemovalChanged(command.server_id, command.removed), *chosen]
