"""Alarms of formation: the cause, the nodes, and the next step.

The alarms only read the decisions. Each is a function of the situation, so it disappears with its cause. An incomplete
promise does not raise an alarm until `patience_ms` has passed.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from bridge.core.formation.founding import FormationState, Founders, Founding
from bridge.core.formation.member import FarmMember
from consensus import counted

WITHDRAW_COMMAND = "garlicfarm withdraw"
CONFIRM_COMMAND = "garlicfarm confirm-cluster"
_EQUIVOCATES = "showed different descriptions to different nodes, and cannot be a founder"
CLUSTERS_SHOWN = 4
ANNOUNCERS_SHOWN = 4
"""Members named for each cluster. A holder of the farm key can invent any number of clusters and members."""


class Situation(Struct, frozen=True):
    """The inputs of the alarms."""

    node_id: bytes
    expect: int
    state: FormationState
    key_file_cluster: bytes | None
    members: Mapping[bytes, FarmMember]
    foundings: Sequence[Founding]
    ignored: Mapping[bytes, Founding]
    """The foundings that this node does not accept, by the member that announces each."""
    unendorsed_by: Sequence[bytes]
    """Nodes whose endorsement this node waits for."""
    too_many: bool

    @property
    def trusted(self) -> bytes | None:
        """The cluster id that the key file or an operator gave this node, if any."""
        return self.key_file_cluster or self.state.confirmed

    @property
    def source(self) -> str:
        """The source of the trusted cluster id, with its verb."""
        return "its farm key file names" if self.key_file_cluster is not None else "an operator confirmed"


def alarms_of(situation: Situation, *, impatient: bool) -> tuple[str, ...]:
    """Return the current alarms; `impatient` is True if this node's promise has been incomplete for too long."""
    state = situation.state
    own = state.founding or state.known
    alarms = []
    if own is not None and situation.ignored:
        alarms.append(_two_clusters(situation, own))
    if own is None:
        if situation.ignored:
            alarms.append(_not_believed(situation))
        elif impatient and situation.trusted is not None:
            alarms.append(_waiting_text(situation, situation.trusted))
        elif impatient and not situation.foundings and state.endorsed is not None:
            alarms.append(_unendorsed(situation, state.endorsed))
        elif impatient and not situation.foundings and state.promise is not None:
            alarms.append(_incomplete(situation, state.promise.founders))
        if situation.too_many and not situation.foundings:
            alarms.append(_too_many(situation.expect))
        alarms.extend(_wrong_expect(situation))
    elif state.known is not None and state.founding is None and situation.node_id in state.known.founders:
        alarms.append(_older_storage(state.known))
    return tuple(alarms)


def _two_clusters(situation: Situation, own: Founding) -> str:
    return (
        f"Two clusters exist under one farm key: this node belongs to {own.cluster_id.hex()}; it ignores"
        f" {_announced(situation)}. Clusters are never merged. If the announcing nodes are yours, keep one cluster. On"
        " each node of the other cluster stop garlicfarm, move its state directory away, give it a key file that"
        " `garlicfarm keys export FILE` wrote in the kept cluster, and start it again: it joins with a new identity."
        " If the nodes are not yours, someone else has the farm key."
    )


def _not_believed(situation: Situation) -> str:
    """Return an alarm about foundings that other nodes announce, on a node that does not belong to a farm yet."""
    announced = _announced(situation)
    if situation.trusted is not None:
        return (
            f"This node ignores {announced}: {situation.source} cluster {situation.trusted.hex()}, and it does not"
            " join another. If `garlicfarm recover` has created a new cluster since, run `garlicfarm keys export"
            " FILE` on a node of the farm, copy that file to this machine, and start this node again. If not, someone"
            " else has the farm key."
        )
    commands = " or ".join(f"`{CONFIRM_COMMAND} {each}`" for each in _clusters(situation)[:CLUSTERS_SHOWN])
    return (
        f"This node has discovered {announced} without proof that this is its farm: any holder of the farm key can"
        " announce one. It waits, and neither creates nor joins a farm. Compare the id with `garlicfarm status` on a"
        f" node of the farm; then run here: {commands}. Or give this node a key file that `garlicfarm keys export FILE`"
        " wrote on a node of the farm."
    )


def _waiting_text(situation: Situation, trusted: bytes) -> str:
    return (
        f"This node waits for cluster {trusted.hex()}, which {situation.source}, and no member in reach announces "
        "it. Start the nodes of that farm, and check this node's seeds. This node's key file may be older than "
        "the farm's keys: `garlicfarm keys export FILE` on a node of the farm writes the current one; copy it here, "
        "and start this node again."
    )


def _clusters(situation: Situation) -> list[str]:
    return sorted({each.cluster_id.hex() for each in situation.ignored.values()})


def _announced(situation: Situation) -> str:
    """Return the ignored clusters, each with the names of the members that announce it."""
    clusters = _clusters(situation)
    parts = []
    for cluster in clusters[:CLUSTERS_SHOWN]:
        announcers = sorted(
            situation.members[node_id].name
            for node_id, founding in situation.ignored.items()
            if founding.cluster_id.hex() == cluster
        )
        more = len(announcers) - ANNOUNCERS_SHOWN
        names = ", ".join(announcers[:ANNOUNCERS_SHOWN]) + (f" and {more} more" if more > 0 else "")
        parts.append(f"cluster {cluster} (announced by {names})")
    left_out = len(clusters) - CLUSTERS_SHOWN
    return " and ".join(parts) + (f" and {left_out} more" if left_out > 0 else "")


def _too_many(expect: int) -> str:
    return (
        f"At least {2 * expect} nodes can create this farm, but it expects {expect}: `expect` must exceed half of "
        "them, or two farms could be created. Stop some nodes until the farm is created, or make a farm key with "
        "`garlicfarm keys new-farm --expect N` and give it to all."
    )


def _wrong_expect(situation: Situation) -> list[str]:
    return [
        f"Node {member.node_id.hex()} promises {counted(len(member.notice.backs), 'founder')}, but this node's farm "
        f"key expects {situation.expect}: the farm keys of these nodes differ. Give both nodes the same farm key file."
        for member in sorted(situation.members.values(), key=lambda member: member.node_id)
        if member.reachable and member.notice.backs and len(member.notice.backs) != situation.expect
    ]


def _incomplete(situation: Situation, founders: Founders) -> str:
    promised: dict[Founders, list[bytes]] = {founders: [situation.node_id]}
    for member in situation.members.values():
        if member.notice.promise is not None:
            promised.setdefault(member.notice.promise.founders, []).append(member.node_id)
    blocked_by = sorted(
        each for rival, nodes in promised.items() if rival != founders for each in nodes if each in founders
    )
    if not blocked_by:
        return _waiting(situation, founders)
    # Every node must recommend the same set, or the operator would get contradicting advice.
    kept = min(promised)
    yielding = sorted(each for rival, nodes in promised.items() if rival != kept for each in nodes)
    return (
        f"Promises collide: this node promised {_names(founders)}, but {_names(blocked_by)} promised other founders."
        f" Run `{WITHDRAW_COMMAND}` on {_names(yielding)}, one at a time; they then join {_names(kept)}."
    )


def _waiting(situation: Situation, founders: Founders) -> str:
    others = [each for each in founders if each != situation.node_id]
    absent = [each for each in others if each not in situation.members or not situation.members[each].reachable]
    silent = [each for each in others if each not in absent and situation.members[each].notice.promise is None]
    false = [each for each in others if each in situation.members and situation.members[each].equivocates]
    reasons = [f"{_names(absent)} cannot be reached"] if absent else []
    reasons += [f"{_names(silent)} did not promise yet"] if silent else []
    reasons += [f"{_names(false)} {_EQUIVOCATES}"] if false else []
    return (
        f"This node promised to create the farm with {_names(others)}, and waits: {' and '.join(reasons)}. Start the"
        f" missing nodes. If one of them will not return, run `{WITHDRAW_COMMAND}` on every node that promised this"
        " set, one at a time."
    )


def _unendorsed(situation: Situation, endorsed: Founding) -> str:
    """Return an alarm: this node has seen all promises, but another node has not confirmed the same promises."""
    members = situation.members
    missing = situation.unendorsed_by
    absent = [each for each in missing if each not in members or not members[each].reachable]
    present = [each for each in missing if each not in absent]
    false = [each for each in present if members[each].equivocates]
    others = [each for each in present if each not in false and members[each].notice.endorsement]
    silent = [each for each in present if each not in false and each not in others]
    reasons = [f"{_names(absent)} cannot be reached"] if absent else []
    reasons += [f"{_names(false)} {_EQUIVOCATES}"] if false else []
    reasons += [f"{_names(others)} saw other promises, so a founder shows different ones"] if others else []
    reasons += [f"{_names(silent)} did not confirm the promises (an older version?)"] if silent else []
    return (
        f"This node has seen the promises of {_names(endorsed.founders)}, and waits before it creates the farm: "
        f"{' and '.join(reasons) or 'the others create it'}. {_way_out(missing, endorsed)}"
    )


def _way_out(missing: Sequence[bytes], endorsed: Founding) -> str:
    """Return the remedy.

    After all founders have endorsed the founding, a withdrawal is refused, and the only remedy is a list of the
    founders.
    """
    outside = [each for each in missing if each not in endorsed.founders]
    if outside and len(outside) == len(missing):
        return (
            f"All founders confirm the promises. Only other nodes block the farm: {_names(outside)}. Stop or update"
            f" each that is yours. If one is not, someone else has the farm key. {list_founders(endorsed)}"
        )
    return (
        "Start the missing nodes; stop or update a node that is not a founder and does not confirm. If one of the"
        f" founders will not return, or is not your node, run `{WITHDRAW_COMMAND}` on every node that shows this"
        " alarm, one at a time, the founders first."
    )


def list_founders(endorsed: Founding) -> str:
    """Return the remedy for a founding that another node blocks: with a list of founders, other nodes do not count."""
    ids = ", ".join(f'"{each.hex()}"' for each in endorsed.founders)
    return (
        f"Compare {_names(endorsed.founders)} with your nodes; if all are yours, set `founders = [{ids}]` at the top of"
        " the settings file of each, and start them again. If not, make a new farm key with `garlicfarm keys new-farm "
        f"--expect {len(endorsed.founders)}`, and give it to all with empty state directories."
    )


def _older_storage(known: Founding) -> str:
    return (
        f"This node is a founder of cluster {known.cluster_id.hex()}, but its state directory does not know it: the"
        " directory is older than the farm, or a copy. A vote from it could undo acknowledged entries. Stop"
        " garlicfarm, move the state directory away and start it again: it joins with a new identity."
    )


def _names(nodes: Sequence[bytes]) -> str:
    return ", ".join(each.hex() for each in nodes)
