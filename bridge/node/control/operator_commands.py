"""Operators' commands to the farm: a node resolves names, submits the entry, and replies with the result.

    {"exclusion": {"hash": ADDRESS, "excluded": true}}      a leaf is not listed, or listed again
    {"cost": {"hash": ADDRESS, "factor": 1.5}}              the cost of a leaf changes
    {"force": {"master": ADDRESS}}                          a master is published again
    {"removal": {"server": NAME or Raft id, "removed": true}}
    {"correction": {}}                                      log time returns to the clocks of a majority of the voters
    {"client": {"name": NAME, "key": KEY, "scopes": ["weights"], "admitted": true}}     a client key is admitted
    {"client": {"name": NAME, "admitted": false}}                                       or removed

The body is an entry of the log in an operator's terms: addresses instead of hashes and destinations, names instead of
Raft ids. Any node accepts a command: the entry goes through the log, and every server's state machine decides equally.
Only a removal that needs a higher feature level than the farm's must be sent to a voter, which first becomes the leader
(`orders.order_level`). The node refuses commands without a possible effect, and does not write them to the log.
"""

from collections.abc import Awaitable, Callable

from msgspec import Struct

from bridge.api import requests
from bridge.api.alarms import ADD_NODE
from bridge.api.building.log_part import address_of_hash
from bridge.api.control import CommandAnswer, Refused, SubmitAnswer, SubmitOutcome
from bridge.api.view import FarmView
from bridge.core.farm.log_time_correction import correction_refusal
from bridge.core.log.feature_level import BOUNDS_LEVEL
from bridge.core.log.fields import ApplicationError, octets
from bridge.core.log.hashes import hash_of
from bridge.core.log.kinds import kind_of
from bridge.core.log.records import ClientKey, Correction, CostFactor, Exclusion, Force, OperatorCommand, Removal
from bridge.core.log.voter_clocks import allowance_ms
from bridge.core.membership.admission import server_label
from bridge.core.membership.client_keys import client_refusal
from bridge.core.state.farm_state import FarmState
from bridge.node.raft.applied_state import AppliedState
from bridge.node.settings.masters import ADDRESS
from bridge.wire.i2p.structures import I2pError, destination_from_base64
from bridge.wire.log.entries import encode
from gossip.wire import PUBLIC_KEY_BYTES, node_id_of

_STATUS = {SubmitOutcome.REFUSED: 409, SubmitOutcome.BUSY: 503, SubmitOutcome.UNKNOWN: 504, SubmitOutcome.EXPIRED: 410}


class OperatorCommands(Struct, frozen=True):
    """Access to the log through one node. `submit` returns after the entry is applied here."""

    view: FarmView
    applied_state: AppliedState
    submit: Callable[[bytes], Awaitable[SubmitAnswer]]
    signer: bytes | None = None
    """The identity of this node, which signs the commands."""

    async def grant(self, request: requests.CommandRequest) -> CommandAnswer:
        """Have a command committed; raise `Refused` with the reason if it is ineffective."""
        kind, command, text = self.check(request)
        answer = await self.submit(encode(command))
        if answer.outcome is not SubmitOutcome.COMMITTED or answer.index is None:
            raise Refused(_STATUS[answer.outcome], answer.outcome.value, answer.reason or "it was not committed")
        refusal = self.applied_state.refusal_of(answer.index)
        if refusal is not None:
            raise Refused(409, "command-refused", refusal)
        return CommandAnswer(kind, answer.index, text)

    def check(self, request: requests.CommandRequest) -> tuple[str, OperatorCommand, str]:
        """Return kind, record and success text of a command; raise `Refused` with the reason if it is not permitted.

        A removal is permitted below its feature level: the removed server may be the reason for the low level.
        """
        kind, command, text = self._understand(request)
        if self._state.level < kind_of(command).level and not isinstance(command, Removal):
            raise Refused(
                409,
                "level-too-low",
                "not all servers of the farm support this entry yet. The leader raises the feature level"
                " automatically when every voter supports it: wait a moment, or update the voters that `garlicfarm"
                " doctor` names. Remove a voter that will not return: `garlicfarm servers remove NAME`",
            )
        return kind, command, text

    def _understand(self, request: requests.CommandRequest) -> tuple[str, OperatorCommand, str]:
        """Return the kind of a command, its entry, and the text for success."""
        match request.order:
            case requests.ExclusionOrder() as order:
                return request.kind, *self._exclusion(order)
            case requests.CostOrder() as order:
                return request.kind, *self._cost(order)
            case requests.ForceOrder() as order:
                return request.kind, *self._force(order)
            case requests.RemovalOrder() as order:
                return request.kind, *self._removal(order)
            case requests.ClientOrder() as order:
                return request.kind, *self._client(order)
            case requests.CorrectionOrder():
                return request.kind, *self._correction()

    @property
    def _state(self) -> FarmState:
        return self.applied_state.state

    # -- leaves --------------------------------------------------------------------------------------------------------

    def _exclusion(self, order: requests.ExclusionOrder) -> tuple[Exclusion, str]:
        leaf_hash = self._leaf_hash(order.hash, is_undo=not order.excluded)
        if not order.excluded and leaf_hash not in self._state.weights.excluded:
            raise Refused(
                409,
                "not-excluded",
                f"{address_of_hash(leaf_hash)} is not excluded; see `garlicfarm farm`",
            )
        done = f"is excluded{self._unknown(leaf_hash)}" if order.excluded else "is listed again"
        return Exclusion(leaf_hash, order.excluded), f"{address_of_hash(leaf_hash)} {done}"

    def _cost(self, order: requests.CostOrder) -> tuple[CostFactor, str]:
        leaf_hash = self._leaf_hash(order.hash, is_undo=order.factor == 1)
        text = f"{address_of_hash(leaf_hash)} has the factor {order.factor:g}{self._unknown(leaf_hash)}"
        return CostFactor(leaf_hash, order.factor), text

    def _leaf_hash(self, text: str, *, is_undo: bool) -> str:
        """Return the hash of a leaf, or to undo an entry of a client key also the hash of a master."""
        found = _hash(text, "leaves")
        if not is_undo and found in {hash_of(master) for master in self._state.masters}:
            raise Refused(409, "a-master", f"{address_of_hash(found)} is a master; exclude and weigh its leaves")
        return found

    def _unknown(self, leaf_hash: str) -> str:
        known = {
            hash_of(leaf.destination) for each in self._state.servers.values() for leaf in each.report.destinations
        }
        return (
            "" if leaf_hash in known else "; no server reports this leaf now: the order counts when a server reports it"
        )

    # -- masters -------------------------------------------------------------------------------------------------------

    def _force(self, order: requests.ForceOrder) -> tuple[Force, str]:
        master_hash = _hash(order.master, "masters")
        master = next((each for each in self._state.masters if hash_of(each) == master_hash), None)
        if master is None:
            known = ", ".join(address_of_hash(hash_of(each)) for each in sorted(self._state.masters)) or "none"
            raise Refused(
                404, "no-such-master", f"no server reports for {address_of_hash(master_hash)}; masters are {known}"
            )
        shown = next((each for each in self.view.publishing if each.master == address_of_hash(master_hash)), None)
        if shown is None or shown.publisher_id is None:
            reason = "" if shown is None else f": {shown.reason}"
            raise Refused(409, "no-publisher", f"no server can publish {address_of_hash(master_hash)} now{reason}")
        who = server_label(shown.publisher_id, shown.publisher_name)
        return Force(
            master
        ), f"{who} publishes {address_of_hash(master_hash)} again, as soon as its router accepts it (within 65 s)"

    # -- servers -------------------------------------------------------------------------------------------------------

    def _removal(self, order: requests.RemovalOrder) -> tuple[Removal, str]:
        server_id = self._server_named(order.server)
        voters = {each.raft_id for each in self.view.raft.voters}
        members = voters | {each.raft_id for each in self.view.raft.learners}
        if not order.removed and server_id not in self._state.removed:
            raise Refused(409, "not-removed", f"{self._name(server_id)} was not removed by an operator")
        if order.removed and server_id in self._state.removed and server_id not in members:
            raise Refused(409, "removed-already", f"{self._name(server_id)} is removed already")
        if order.removed and is_voter_kept(self.view, server_id):
            raise Refused(
                409,
                "too-few-voters",
                f"a farm of {self.view.farm.expect} keeps that many voters, and it has {len(voters)}: first"
                f" {ADD_NODE}; once it votes, {self._name(server_id)} can be removed",
            )
        if not order.removed:
            return Removal(server_id, removed=False), f"{self._name(server_id)} may join again"
        leads = server_id == self.view.raft.leader_id
        how = "hands over leadership and is then removed" if leads else "is removed from the group"
        if server_id in voters and len(voters) <= self.view.farm.expect:
            how += ", after another server has got its vote"
        return Removal(server_id, removed=True), f"{self._name(server_id)} {how}"

    # -- client keys ---------------------------------------------------------------------------------------------------

    def _client(self, order: requests.ClientOrder) -> tuple[ClientKey, str]:
        try:
            entry = self._admitted_client(order) if order.admitted else self._removed_client(order.name)
        except ApplicationError as error:
            raise Refused(400, "bad-key", str(error)) from error
        signer = self.signer if self._state.level >= BOUNDS_LEVEL else None
        reason = client_refusal(self._state.clients, self._state.admitted, entry, signer)
        if reason is not None:
            raise Refused(409, "client-refused", reason)
        scopes = " and ".join(each.value for each in entry.scopes)
        done = f"is admitted with the scope {scopes}" if order.admitted else "is removed: the farm ignores its entries"
        return entry, f"the client key {entry.name} ({entry.node_id.hex()}) {done}"

    def _admitted_client(self, order: requests.ClientOrder) -> ClientKey:
        key = octets(order.key or "", PUBLIC_KEY_BYTES)
        return ClientKey(node_id_of(key), order.name, key, tuple(dict.fromkeys(order.scopes)), admitted=True)

    def _removed_client(self, name: str) -> ClientKey:
        for node_id, client in self._state.clients.items():
            if client.admitted and name in {client.name, node_id.hex()}:
                return ClientKey(node_id, client.name, client.key, client.scopes, admitted=False)
        known = ", ".join(sorted(each.name for each in self._state.clients.values() if each.admitted)) or "none"
        raise Refused(404, "no-such-client", f"no client key has the name or id {name[:64]!r}; there are {known}")

    # -- log time ------------------------------------------------------------------------------------------------------

    def _correction(self) -> tuple[Correction, str]:
        """Return the entry that sets log time to this node's estimate of the majority time, within the log's bounds."""
        state, tuning = self._state, self.applied_state.farm.tuning
        majority_ms = state.clocks.majority_ms(state.applied_term)
        judgment = self.applied_state.judge_clocks(self.view.node.raft_id or 0)
        now = majority_ms if judgment is None else judgment.majority_ms
        if majority_ms is None or now is None:
            raise Refused(
                409, "no-majority", "no majority of the voters reported recently; see `garlicfarm log-time show`"
            )
        time_ms = min(max(now, majority_ms), majority_ms + allowance_ms(tuning.period_ms))
        refusal = correction_refusal(state.log_time_ms, majority_ms, time_ms, tuning.period_ms)
        if refusal is not None:
            raise Refused(409, "command-refused", refusal)
        back_s = (state.log_time_ms - time_ms) / 1000
        return Correction(time_ms), f"log time goes back by {back_s:.0f} s, to the clocks of a majority of the voters"

    # -- common --------------------------------------------------------------------------------------------------------

    def removal_refusal(self, removal: Removal) -> str | None:
        """Return the reason why a submitted removal or restoration is refused; None if it is permitted.

        A directly submitted entry must meet the rules of the command.
        """
        try:
            self._removal(requests.RemovalOrder(str(removal.server_id), removal.removed))
        except Refused as refused:
            return str(refused)
        return None

    def _server_named(self, name: str) -> int:
        # Retired and evicted identities keep their names in the log, so the member with this name is searched first.
        for server_id, admitted in sorted(
            self._state.admitted.items(), key=lambda each: (str(each[0]) != name, not each[1].is_member, -each[0])
        ):
            if name in {str(server_id), admitted.name, admitted.node_id.hex()}:
                return server_id
        known = ", ".join(dict.fromkeys(map(self._name, sorted(self._state.admitted))))
        raise Refused(
            404, "no-such-server", f"no server has the name, Raft id or node id {name[:64]!r}; there are {known}"
        )

    def _name(self, server_id: int) -> str:
        return server_label(server_id, self._state.admitted[server_id].name)


def is_voter_kept(view: FarmView, server_id: int) -> bool:
    """Return True if the removal of this voter would leave fewer than `expect` voters.

    Learners, except evicted ones, count as voters: a learner gets a vote before the voter is removed.
    """
    voters = {each.raft_id for each in view.raft.voters}
    learners = [each for each in view.raft.learners if not each.evicted]
    return server_id in voters and len(voters) + len(learners) <= view.farm.expect


def _hash(text: str, plural: str) -> str:
    """Return the hash in an address, with or without its ending, or of a destination in base64.

    `plural` names the expected destinations in the refusal.
    """
    found = ADDRESS.fullmatch(text)
    if found is not None:
        return found[1]
    try:
        return hash_of(destination_from_base64(text).base64)
    except I2pError as error:
        raise Refused(
            400,
            "bad-hash",
            f"{text[:60]!r} is neither an address (52 characters and .b32.i2p) nor a destination;"
            f" `garlicfarm farm` lists the {plural}",
        ) from error
