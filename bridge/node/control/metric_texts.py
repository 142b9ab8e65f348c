"""What each metric of `/metrics` means: what it tells, when it grows, and what an operator does about it.

The histograms' texts are in `bridge.node.events.durations`. A counter that is known beforehand has a text of its own.
Others are made while the node runs, a family name with a reason
in words behind it (`raft_dropped_reply_of_an_older_term`): their text is that of the family, with the reason in it. The
names are those of the view, without `garlicfarm_` and `_total`. docs/reference/metrics.md is made of this.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from bridge.core.log.kinds import COUNTED
from bridge.core.membership.authors import NoEffect
from consensus import Drop, ShellDrop
from consensus.protocols.garlic_farm import ConnectionEvent

_ENTRIES: Final = "Every server counts the same; it begins anew with the process"
_QUIET: Final = "A small number is normal. If it grows steadily, find the sender"
_STRANGER: Final = "Nothing to do if it is small; a steady growth is a program that tries: `garlicfarm events` names it"
_OWN_KEY: Final = "If it is a node of yours, give it the farm's key file; otherwise nothing"
_LOAD: Final = "If it grows steadily the machine or the network is overloaded: `garlicfarm doctor` measures both"

GAUGES: Final[Mapping[str, str]] = {
    "verdict": (
        "How the farm is as this node sees it: 1 at the kind of the verdict, 0 at the others."
        " `garlicfarm help verdicts` says of each kind what to do."
    ),
    "can_lose_servers": (
        "How many servers may fail, whichever they are, before the farm stops its work. At 0 bring back the one that"
        " is down before another fails."
    ),
    "node_info": "Constant 1, with the name, version and phase of this node as labels; join other metrics with it.",
    "uptime_seconds": (
        "Seconds since this process started. It falls when the node restarts: `garlicfarm events` says why."
    ),
    "generation": (
        "How often this node has started, kept on disk. It grows by one with each start; a fast growth is a node that"
        " a supervisor restarts again and again."
    ),
    "alarms": (
        "Alarms that stand on this node, by kind. Each says what to do in `garlicfarm status`; 0 or no series when"
        " none stands."
    ),
    "members": (
        "Members that this node knows by gossip, by status, without evicted identities. Dead ones are forgotten after"
        " a while; start what should run."
    ),
    "gossip_peers": (
        "Members that this node probes, itself not among them. At 0 it is alone: look at the seeds and the firewall."
    ),
    "gossip_capacity": (
        "Members that this node is willing to probe, as `gossip.capacity` says. Raise it if members are redirected"
        " all the time."
    ),
    "gossip_round_trip_seconds_max": (
        "The last round trip of gossip to the slowest peer, in seconds. Above a second members are suspected without"
        " being dead: look at the network."
    ),
    "raft_role": (
        "What this node is in the Raft group: 1 at its role, 0 at the others. Over all nodes one should be the leader."
    ),
    "raft_term": (
        "The latest term of Raft that this node knows. It grows by one with each election; a steady growth means that"
        " leaders lose their majority."
    ),
    "raft_has_leader": (
        "1 while this node knows a leader, else 0. For more than some seconds 0 means that no majority of the voters"
        " reaches each other."
    ),
    "raft_last_index": (
        "The index of the last entry in this node's log. Entries above the commit index wait for a majority."
    ),
    "raft_commit_index": (
        "The index of the last committed entry that this node knows. It grows with every report; if it stands still,"
        " the farm decides nothing."
    ),
    "raft_applied_index": (
        "The index of the last entry that this node's state machine has applied. It follows the commit index at once;"
        " a lasting gap is a stuck process."
    ),
    "raft_follower_lag_entries": (
        "Entries of the log that a follower still lacks, as the leader knows it, by the server's name. It falls to 0"
        " once the server has caught up; look at one for which it grows."
    ),
    "publishing": (
        "How many master destinations this node publishes now. Over all nodes it is the number of masters; 0"
        " everywhere means that nothing is published."
    ),
    "lease_set_entries": (
        "Leaves that the last published structures list, over all masters. It falls when leaves are excluded or their"
        " routers fail."
    ),
    "lease_set_healthy_entries": (
        "Leaves among those listed whose router, tunnels and service are healthy. At 0 clients reach nothing: look at"
        " `garlicfarm farm`."
    ),
    "lease_set_seconds_to_expiry": (
        "Seconds of log time until the first entry of a published structure ends. It is renewed every five minutes;"
        " below 600 publication has stopped."
    ),
}

_GOSSIP: Final = {
    "datagrams_received": "UDP datagrams that arrived on the gossip port, whatever became of them. It grows with"
    " every probe; if it stands still, no member reaches this node: look at the firewall",
    "datagrams_sent": "UDP datagrams of gossip that this node has sent. It grows with every probe, about one a second",
    "bytes_received": "Bytes of the datagrams that arrived on the gossip port. A steep rise is a flood, or a member"
    " that joins again and again",
    "bytes_sent": "Bytes of gossip that this node has sent. It grows with the number of peers and with news",
    "events_lost": "Events of gossip that this node itself was too slow to take. It grows under overload only:"
    " `garlicfarm doctor` measures how late the process runs",
    "piggyback_left_out": "News that did not fit into a datagram and waits for the next one. It grows while much"
    " changes at once, and by itself needs nothing",
}
_CONTROL: Final = {
    "connections": "Connections to the control endpoint, by its socket and over TCP. It grows with each command and"
    " each scrape",
    "connections_refused": "Connections that found no free place at the control endpoint. If it grows, a program keeps"
    " too many open or strangers crowd the TCP port: close it to them by the firewall",
    "connections_broken": "Connections that broke the rules of HTTP or of time at the control endpoint. It grows with"
    " port scanners and clients that hang",
    "unauthorized": "Requests over TCP without a valid token. If a program of yours causes it, give it the node's"
    " present token file; otherwise a stranger tries the port",
    "requests": "Requests that the control endpoint has answered. It grows with each command, scrape and view",
    "refused": "Requests that the control endpoint refused with a reason. The reason is in the answer that the client"
    " got, and needs nothing here",
    "internal_errors": "Requests that failed by a fault of the program. It must stay 0: the node's log has the"
    " traceback; please report it",
}
_FAULTS: Final = {
    "malformed": ("bytes that are no message of the protocol", _STRANGER),
    "too_large": ("a message that announces more than the limits allow", _STRANGER),
    "out_of_turn": (
        "a message that its sender may not send now, such as a server's from one that has not proven to be a server",
        _STRANGER,
    ),
    "wrong_path": ("a request to a path that is not the farm's", _STRANGER),
    "wrong_method": ("a request with a method that no handshake has", _STRANGER),
    "wrong_version": ("another version of the protocol", "Install the same release on every node"),
    "wrong_credentials": (
        "a wrong user or password",
        "Give that node the farm's present key file, or the users that `consensus.users_file` names",
    ),
    "replayed": (
        "a recorded handshake that was sent again",
        "A program on the network repeats what it saw; it got no answer and no access",
    ),
    "wrong_cluster": (
        "the name or id of another cluster",
        "Correct the seeds of that node; or one of the two farms was created by mistake",
    ),
    "wrong_server": (
        "another server than the one expected at that address",
        "Look for two nodes with one address, or an address that has changed hands",
    ),
    "unproven": ("a Raft id without the proof of it", "If it is a node of yours, update it; otherwise nothing"),
    "unknown_identity": (
        "an identity that the log has not admitted",
        "`garlicfarm node list` shows it; approve it if it is yours",
    ),
    "expelled": ("an identity that was retired or evicted, or a removed server", "Stop that node if it is yours"),
    "wrong_certificate": (
        "a certificate that has expired or is not the announced one",
        "Look at the clock and the certificate of the server that the alarm names",
    ),
    "distrusted": (
        "a peer that does not trust this node's certificate",
        "Look at the clock and the certificate of this node",
    ),
    "plain_refused": (
        "an address that may not be called without TLS",
        "Correct the address in that server's settings",
    ),
    "proxy_refused": ("the HTTP proxy of the router refused", "Look at `proxy.user` and `proxy.password_file`"),
    "refused_upgrade": (
        "the peer refused the handshake for another reason",
        "The event `connection-failed` has its words",
    ),
    "unreachable": (
        "the peer could not be connected to",
        "Start it, or look at the firewall on the way; it grows as long as a server is down",
    ),
    "silent": ("the peer said nothing in time", _LOAD),
    "busy": (
        "the peer, or this node, had no free place or does not know its farm yet",
        "It ends when the farm is created; otherwise too many clients connect",
    ),
    "refused_change": ("a change of the servers that the peer refused", "The event `change-refused` has the reason"),
    "foreign_snapshot": (
        "a snapshot that is not the farm's",
        "A server of another make needs to be fed with entries",
    ),
}
_WITHOUT_EFFECT: Final = {each.value.replace("-", "_"): each.cause for each in NoEffect}
_RAFT: Final = {
    "structures_published": "Structures that this node has handed to its router. It grows on the publisher, every five"
    " minutes and with each change; if it stands still there, look at the alarms",
    "figures_dropped": "Figures that this node left out of its reports, because they are outside their ranges. If it"
    " grows, the router reports impossible values: compare its console with `garlicfarm farm`",
    "disk_groups": "Groups of entries that were written to the log on disk. It grows with every commit",
    "disk_persists": "Writes with a sync to disk. One carries all that came meanwhile, so it grows more slowly than"
    " the entries; `garlicfarm_disk_seconds` tells how long they take",
    "entries_reread": "Entries that were read from disk again because a follower lacks what memory no longer has. It"
    " grows while a server catches up; steadily, if one is too slow for the others",
}
_OTHERS: Final = {
    "metadata_unreadable": "Descriptions of other nodes that this version cannot read. If it grows, a node runs another"
    " release: install the same one on all",
    "foundings_ignored": "Foundings of a farm that this node did not take for its own. If it grows, a node with the"
    " same key file belongs to another farm: the alarms say how to join them",
    "zmq_messages_received": "Messages that the ØMQ endpoint has received. It grows with its clients' requests",
    "zmq_messages_sent": "Messages that the ØMQ endpoint has sent. It grows with its clients' requests",
    "kafka_requests_answered": "Requests that the Kafka listener has answered. It grows with its clients' work",
    "kafka_bytes_received": "Bytes of requests that the Kafka listener has received",
    "kafka_bytes_sent": "Bytes of answers that the Kafka listener has sent. It grows as consumers read the log",
    "kafka_logins": "Logins that the Kafka listener has accepted. A steep rise means that clients reconnect without"
    " end",
    "kafka_connections_accepted": "Connections that the Kafka listener has accepted, before any login",
    "kafka_produced_records": "Records that clients of the Kafka listener have produced and the farm has committed",
    "kafka_produced_duplicates": "Records that were produced a second time and left out, as idempotent producers do"
    " after a lost answer. It needs nothing",
    "kafka_produced_producers": "Producers that have asked the Kafka listener for an id",
    "zmq_updates_committed": "Updates of clients of the ØMQ endpoint that the farm has committed",
    "zmq_updates_unknown": "Updates of clients of the ØMQ endpoint whose end is not known. Their clients repeat them"
    " under the same id",
}


class _Family(NamedTuple):
    prefix: str
    text: str
    """With `{}` for the reason."""
    reasons: Mapping[str, str] = {}
    """Reasons that have words better than their names."""
    advice: Mapping[str, str] = {}


_FAMILIES: Final = (
    _Family(
        "gossip_dropped_",
        "Datagrams of gossip that were dropped unheard, because {}",
        {
            "short": "they are too short to be any",
            "other_farm": "they carry another farm's label",
            "foreign_version": "they are of another version of the protocol",
            "unknown_key": "they are sealed with a key that this node does not have",
            "retired_key": "they are sealed with a key that the farm has removed",
            "bad_seal": "their seal does not fit: damaged, or forged",
            "replay": "they were received before",
            "echo": "they are this node's own",
            "misaddressed": "they are meant for another address",
            "malformed": "they do not follow the format although the seal fits",
            "forged": "a signature in them does not verify",
            "oversize": "they are too large",
            "rate_limited": "their source sends too many",
            "overloaded": "they came faster than this node could take them",
            "misplaced": "they came by broadcast and are no announcement",
            "send_failed": "the operating system refused to send them",
            "larger_than_question": "they answer an address that nothing proves, and are larger than the question",
            "unencodable": "this node could not write them",
            "answer_lost": "a query's answer was read too slowly",
            "admit_failed": "a join could not be decided about",
            "keyring_of_a_stranger": "keys came from one that is not trusted with keys",
            "wide_area": "they would have gone to a public address, which `gossip.allow_wan` does not allow",
        },
        {
            "other_farm": f"{_OWN_KEY}: another farm on this network may stay",
            "unknown_key": _OWN_KEY,
            "retired_key": f"It missed a change of keys. {_OWN_KEY}",
            "foreign_version": "Install the same release on every node",
            "rate_limited": _STRANGER,
            "overloaded": _LOAD,
            "send_failed": "Look at the firewall and the routes of this machine",
        },
    ),
    _Family(
        "gossip_ignored_",
        "Messages of members that changed nothing, because {}",
        {
            "bad_description": "a member's description in them is not signed by it",
            "unknown_subject": "they tell of a member that this node does not know",
            "bad_verdict": "they judge a member in a way that the protocol does not allow",
            "forged_left": "they say that a member has left, without its signature",
            "contradicted_verdict": "they say that a member is suspect or dead, and the member answers",
            "not_the_target": "they are meant for another member",
            "relay_table_full": "too many probes are relayed at a time",
            "relay_repeated": "the probe was relayed before",
            "unmatched_response": "they answer what was not asked, or too late",
            "unsolicited": "they were not asked for",
            "rate_limited": "their sender tells too much",
            "leaving": "this node leaves",
            "stale_join": "the join that they belong to is over",
            "former_life": "they are meant for this node before its restart",
            "own_message": "they are this node's own",
            "directory_full": "the list of members is full",
            "seeds_full": "the list of addresses to try is full",
            "maintenance": "no peer is wanted or to be given up now",
            "bad_user_message": "a user event or query in them breaks the limits",
            "user_message_before_join": "a user event came before this node had joined",
            "queries_full": "too many queries are open",
            "answer_too_late": "the query that they answer is over",
            "answer_repeated": "that member has answered the query already",
            "bad_keyring": "the keys in them are not signed as they must be",
            "other_era": "the keys in them are of another era of the farm's keys",
            "keyring_would_split": "with the keys in them this node could not read the others any more",
        },
        {"keyring_would_split": "Compare `garlicfarm keys list` on the nodes", "rate_limited": _STRANGER},
    ),
    _Family(
        "garlic_farm_",
        "Connections of the Raft port, in or out, that failed: {}",
        {name: words for name, (words, _) in _FAULTS.items()},
        {name: advice for name, (_, advice) in _FAULTS.items()},
    ),
    _Family(
        "raft_without_effect_",
        "Committed entries without effect, because {}",
        _WITHOUT_EFFECT,
        dict.fromkeys(_WITHOUT_EFFECT, "The event `entry-without-effect` names kind and author; look for that program"),
    ),
    _Family("raft_dropped_", "Dropped before Raft: {}", {each.value: each.meaning for each in ShellDrop}),
    _Family(
        "raft_ignored_",
        "Dropped by Raft: {}. Elections and restarts cause some",
        {each.value: each.meaning for each in Drop},
    ),
    _Family("zmq_updates_", "Updates of clients of the ØMQ endpoint that were not committed, by reason: {}"),
    _Family("zmq_", "Messages that the ØMQ endpoint dropped, by reason: {}"),
    _Family("kafka_closed_", "Connections that the Kafka listener has closed, by reason: {}"),
    _Family("kafka_produced_refused_", "Batches of Kafka's producers that were refused, by reason: {}"),
    _Family("kafka_", "What the Kafka listener has counted: {}"),
)


def _prefixed(prefix: str, texts: Mapping[str, str]) -> dict[str, str]:
    return {prefix + name: text for name, text in texts.items()}


COUNTERS: Final[Mapping[str, str]] = {
    **_prefixed("gossip_", _GOSSIP),
    **_prefixed("control_", _CONTROL),
    **{f"garlic_farm_{each.replace('-', '_')}": each.meaning for each in ConnectionEvent},
    **{f"raft_{name}": f"Entries that this node has applied: {text}. {_ENTRIES}" for name, text in COUNTED.items()},
    **_prefixed("raft_", _RAFT),
    **_OTHERS,
}
"""Those that have a text of their own."""


def counter_text(name: str) -> str:
    """The meaning of a counter, whatever it is called, in sentences."""
    known = COUNTERS.get(name)
    if known is not None:
        return f"{known}."
    for family in _FAMILIES:
        if name.startswith(family.prefix):
            reason = name.removeprefix(family.prefix)
            words = family.reasons.get(reason, reason.replace("_", " "))
            return f"{family.text.format(words)}. {family.advice.get(reason, _QUIET)}."
    return f"What this node has counted since its start: {name.replace('_', ' ')}. {_QUIET}."


def names_of_families() -> Iterable[str]:
    """How counters begin that are made while the node runs."""
    return (f"{family.prefix}…" for family in _FAMILIES if not family.reasons)
