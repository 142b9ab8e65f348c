"""Events, counters and alarms for refused connections.

    a server refuses this node ──▶ alarm `refused-by-peers`  until the two connect, or for ten minutes
    this node refuses a caller ──▶ alarm `peers-refused`     for ten minutes

The ten minutes begin again with each refusal. A successful connection in either direction removes the peer from the
first alarm. From the second alarm, it removes the faults of settings and versions, and wrong passwords of the last
30 s.

Both sides report a refusal, because the operator may check only one of them. The fault is usually at the refused node:
a wrong password, clock or version. So the refusing node names the caller. Any machine on the network can cause some
failures of incoming connections without a secret (wrong paths, invalid bytes, timeouts). They are counted and reported
as events, without an alarm.

*Repetitions.* A stopped server is called again every few seconds, with the same failure. The first failure is an event.
The others are counted; their count is reported every ten minutes and when the connection is restored.
"""

import re
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

import trio
from msgspec import Struct
from msgspec.structs import replace

from bridge.api.alarms import PEERS_REFUSED, REFUSED_BY_PEERS, AlarmType
from bridge.api.events import CHANGE_REFUSED, CONNECTION_FAILED, CONNECTION_REFUSED, CONNECTION_RESTORED
from bridge.api.trace import Scalar
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from consensus import sleep_to_tick
from consensus.protocols.garlic_farm import Fault, Incident

Key = TypeVar("Key")
Value = TypeVar("Value")
QUIET_AFTER_S = 600.0
MOMENT_S = 30.0
LOOK_EVERY_S = 5.0
SHOWN_MAX = 4
REMEMBERED_MAX = 64
REPORT_EVERY_S = 600.0
_CORRECTED = (Fault.WRONG_CLUSTER, Fault.WRONG_VERSION, Fault.WRONG_SERVER)
"""Faults of a peer that a successful connection disproves. An attacker could cause the other faults at its address."""
_SERVER = re.compile(r"\bserver ([1-9][0-9]{0,9})\b")

_DO_WHERE_REFUSED = {
    Fault.WRONG_CREDENTIALS: "give this node the farm's present key file (`garlicfarm keys export FILE` at a node of"
    " the farm), or correct its line in logins_file",
    Fault.REPLAYED: "find the proxy or machine on the way that repeats requests",
    Fault.WRONG_PATH: "check that the address leads to a server of this farm",
    Fault.WRONG_CLUSTER: "if `garlicfarm recover` created this farm again: stop this node, move its state directory"
    " away and start it again; if it is another farm: use that farm's key file, or remove the address from the"
    " seeds. Two clusters never merge",
    Fault.WRONG_VERSION: "update the older garlicfarm",
    Fault.WRONG_SERVER: "check the addresses that the servers advertise: two of them lead to one server",
    Fault.UNPROVEN: (
        "find the program between the two nodes; with I2P, write each seed like that node's consensus.advertise"
    ),
    Fault.UNKNOWN_IDENTITY: (
        "if this node has a wrong state directory, or an old copy of it, restore the right one; otherwise start it as"
        " a new node, with a new state directory"
    ),
    Fault.EXPELLED: (
        "at a node of the farm, `garlicfarm node list` shows the evicted and retired servers, and `garlicfarm servers`"
        " the removed servers. To let the node return, restore a removed server (`garlicfarm servers restore NAME`);"
        " otherwise give the node a new state directory (`garlicfarm help servers`)"
    ),
    Fault.WRONG_CERTIFICATE: (
        "if that server has just started, wait until gossip brings its certificate; with [consensus] ca_file, check"
        " that server's certificate and this node's clock. If it lasts, another program may listen at its address:"
        " find it, and do not switch the check off"
    ),
    Fault.PLAIN_REFUSED: 'set the same `transport` on all servers; with "i2p" each advertises its .b32.i2p name',
    Fault.PROXY_REFUSED: "correct [proxy] user and password_file",
}
_DO_WHERE_REFUSING = {
    Fault.WRONG_CREDENTIALS: (
        "if it is your node, give it the farm's present key file; otherwise a program guesses passwords at this"
        " address; it does not get data"
    ),
    Fault.REPLAYED: (
        "an attacker recorded a handshake and sent it again: the connection was refused; find the program that could"
        " record it"
    ),
    Fault.WRONG_CLUSTER: "check which farm's key file that node has; if it is a member of this farm from before"
    " `garlicfarm recover`, move its state directory away and start it again",
    Fault.WRONG_VERSION: "update the older garlicfarm",
    Fault.WRONG_SERVER: "check the addresses that the servers advertise: two of them lead to one server",
    Fault.UNPROVEN: (
        "a program has this farm's key file without an identity of the farm, or relays between two nodes: find it,"
        " and if the file was copied, replace the keys (`garlicfarm help copied-key-file`)"
    ),
    Fault.UNKNOWN_IDENTITY: (
        "if it is your node, restore its state directory, or give it a new one and let it be admitted; otherwise"
        " someone else has this farm's key file, so replace the keys (`garlicfarm help copied-key-file`)"
    ),
    Fault.EXPELLED: (
        "a retired, evicted or removed node still runs: stop it, or let it rejoin (`garlicfarm help servers`); if you"
        " do not run it, replace the keys (`garlicfarm help copied-key-file`)"
    ),
}


class _Repeated(Struct):
    """The repeated failures of one kind, in one direction, with one peer."""

    what: str
    """The failed action, as the text begins: `link to node-2`."""
    reported_s: float
    before: int = 0
    """Number of failures before the last reported one."""
    unreported: int = 0

    @property
    def failures(self) -> int:
        return self.before + 1 + self.unreported


class RefusedConnections:
    """The observer of failed connections: it writes events, and sets alarms if an operator can act."""

    def __init__(self, trace: EventLog, alarms: Alarms, name_of: Callable[[int], str | None] = lambda _: None) -> None:
        """Replace Raft ids in texts by the names that `name_of` returns."""
        self._name_of = name_of
        self._repeated: OrderedDict[tuple[bool, str, Fault], _Repeated] = OrderedDict()
        self._trace = trace
        self._alarms = alarms
        self._by_peers: OrderedDict[str, tuple[Incident, float]] = OrderedDict()
        self._peers: OrderedDict[tuple[str, Fault], tuple[Incident, float]] = OrderedDict()

    def incident(self, incident: Incident) -> None:
        """Report a refused connection."""
        incident = replace(incident, text=_SERVER.sub(self._named, incident.text))
        self._report(incident)
        if incident.outgoing and incident.fault in _DO_WHERE_REFUSED:
            _remember(self._by_peers, incident.peer, (incident, trio.current_time()))
        elif not incident.outgoing and incident.fault in _DO_WHERE_REFUSING:
            _remember(self._peers, (incident.peer, incident.fault), (incident, trio.current_time()))
        else:
            return
        self._show()

    def connected(self, peer: str) -> None:
        """Clear the refusals by a peer, and its corrected faults, after a connection in either direction.

        Members receive new keys at different times, so a member may send an old password shortly before the new one.
        """
        self._report_restored(peer)
        self._by_peers.pop(peer, None)
        refused = self._peers.get((peer, Fault.WRONG_CREDENTIALS))
        if refused is not None and trio.current_time() - refused[1] < MOMENT_S:
            del self._peers[peer, Fault.WRONG_CREDENTIALS]
        for fault in _CORRECTED:
            self._peers.pop((peer, fault), None)
        self._show()

    def _named(self, found: re.Match[str]) -> str:
        return self._name_of(int(found[1])) or found[0]

    def _report(self, incident: Incident) -> None:
        facts: dict[str, Scalar] = {"reason": incident.fault.value, "text": incident.text}
        if incident.fault is Fault.REFUSED_CHANGE:
            self._trace.append(CHANGE_REFUSED, facts)
            return
        key, now_s = (incident.outgoing, incident.peer, incident.fault), trio.current_time()
        known = self._repeated.get(key)
        if known is not None and now_s - known.reported_s < REPORT_EVERY_S:
            known.unreported += 1
            return
        if known is not None:
            facts["times"] = known.unreported + 1
        _remember(
            self._repeated,
            key,
            _Repeated(incident.text.partition(":")[0], now_s, 0 if known is None else known.failures),
        )
        self._trace.append(CONNECTION_FAILED if incident.outgoing else CONNECTION_REFUSED, facts)

    def _report_restored(self, peer: str) -> None:
        over = [self._repeated.pop(key) for key in list(self._repeated) if key[0] and key[1] == peer]
        failures = sum(each.failures for each in over)
        if failures > 1:
            self._trace.append(CONNECTION_RESTORED, {"text": f"{over[-1].what} works again", "failures": failures})

    async def run(self) -> None:
        """Drop old refusals, until canceled."""
        while True:
            await sleep_to_tick(LOOK_EVERY_S)
            oldest = trio.current_time() - QUIET_AFTER_S
            _forget(self._peers, oldest)
            _forget(self._by_peers, oldest)  # servers outside the group are not called any more
            self._show()

    def _show(self) -> None:
        self._set(REFUSED_BY_PEERS, [incident for incident, _ in self._by_peers.values()], _DO_WHERE_REFUSED)
        self._set(PEERS_REFUSED, [incident for incident, _ in self._peers.values()], _DO_WHERE_REFUSING)

    def _set(self, alarm: AlarmType, incidents: list[Incident], actions: dict[Fault, str]) -> None:
        if not incidents:
            self._alarms.clear(alarm)
            return
        latest = incidents[-SHOWN_MAX:]
        more = len(incidents) - len(latest)
        text = "; ".join([*(each.text for each in latest), *([f"and {more} more"] if more else [])])
        self._alarms.set(alarm, text, "; ".join(dict.fromkeys(actions[each.fault] for each in latest)))


def _remember(known: OrderedDict[Key, Value], key: Key, value: Value) -> None:
    known.pop(key, None)
    known[key] = value
    if len(known) > REMEMBERED_MAX:
        known.popitem(last=False)


def _forget(known: OrderedDict[Key, tuple[Incident, float]], oldest_s: float) -> None:
    for key in [key for key, (_, at_s) in known.items() if at_s < oldest_s]:
        del known[key]
