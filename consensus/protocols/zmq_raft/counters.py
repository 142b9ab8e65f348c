"""Counters of ØMQ Raft: of its sockets, of the endpoints for clients, of peers, and of clients.

    SocketDrop     messages that a socket drops
    EndpointEvent  messages and keys at an endpoint for clients
    EndpointDrop   messages that the endpoint drops, and replies and streams that it cannot complete
    PeerEvent      faults and repetitions in the exchange between peers, and ignored updates
    ClientEvent    messages that a client drops or cannot send

The identifiers name the counters in views and metrics. This module does not import pyzmq, so a program without the
extra has the identifiers and the meanings.
"""

from consensus.core.drops import CountedReason


class SocketDrop(CountedReason):
    """Messages that a socket drops."""

    CONNECTION_GONE = "connection_gone", "messages to a closed connection"
    QUEUE_FULL = "queue_full", "messages to a connection with a full queue"
    TOO_LARGE = "too_large", "received messages that are too large or have too many frames"


class EndpointEvent(CountedReason):
    """Ordinary events of an endpoint for clients."""

    KEYS_ACCEPTED = (
        "keys_accepted",
        "Accepted keys at the ØMQ endpoint. It grows with each new connection of a listed client",
    )
    KEYS_REFUSED = (
        "keys_refused",
        "Refused keys of unlisted clients. If it grows, list the key of your client, or find the unknown program",
    )
    MESSAGES_RECEIVED = (
        "messages_received",
        "Messages that the ØMQ endpoint has received. It grows with its clients' requests",
    )
    MESSAGES_SENT = "messages_sent", "Messages that the ØMQ endpoint has sent. It grows with its replies to clients"


class EndpointDrop(CountedReason):
    """Messages dropped without a reply, and replies and streams that the endpoint cannot complete."""

    CLIENT_STREAMS = "client_streams", "requests for entries of a client that already has too many streams"
    MALFORMED = "malformed", "messages that are not requests of the protocol"
    NOT_RUNNING = "not_running", "requests for entries that arrive before the endpoint runs"
    OTHER_CLUSTER = "other_cluster", "requests for another cluster"
    PEER_MESSAGE = "peer_message", "messages that only peers send to each other"
    REPLY_UNENCODABLE = "reply_unencodable", "replies that the protocol cannot express"
    SNAPSHOT_UNREADABLE = (
        "snapshot_unreadable",
        "streams of entries that ended because the stored snapshot is damaged: run `garlicfarm log verify`",
    )
    STREAM_EXPIRED = "stream_expired", "streams of entries whose client confirms nothing in time"
    TOO_MANY_CHANGES = "too_many_changes", "changes of the members above the limit of pending changes"
    TOO_MANY_STREAMS = "too_many_streams", "requests for entries above the limit of streams of all clients"
    TOO_MANY_UPDATES = "too_many_updates", "updates above the limit of pending updates"
    UNCONFIRMED_BYTES = "unconfirmed_bytes", "requests for entries while too many sent bytes are unconfirmed"
    UNHANDLED_TYPE = "unhandled_type", "requests of a type that the service does not handle"


class PeerEvent(CountedReason):
    """Dropped, repeated and unsent messages between peers, unreachable members, and ignored updates."""

    CHUNK_WITHOUT_MEMBERS = (
        "chunk_without_members",
        "snapshot chunks dropped because the sender did not report the members",
    )
    MALFORMED_REPLY = "malformed_reply", "malformed replies of peers"
    MALFORMED_REQUEST = "malformed_request", "malformed requests of peers"
    MEMBER_AT_OTHER_ADDRESS = (
        "member_at_other_address",
        "switches between the two addresses of a member, in the log and the settings",
    )
    MEMBER_WITH_BAD_ADDRESS = "member_with_bad_address", "members with an unusable address"
    MEMBER_WITHOUT_ADDRESS = "member_without_address", "members without an address"
    NO_REPLY = "no_reply", "requests of peers that this server does not reply to"
    PEER_OF_OTHER_CLUSTER = "peer_of_other_cluster", "requests of peers of another cluster"
    REPEATED_BY_PEER = "repeated_by_peer", "requests that peers have repeated"
    REQUEST_BUSY = "request_busy", "requests of peers that the server refused because it was busy"
    REQUEST_GIVEN_UP = "request_given_up", "requests that this peer no longer repeats"
    REQUEST_REPEATED = "request_repeated", "requests that this peer has repeated"
    REQUEST_REPLACED = "request_replaced", "requests replaced by a newer request before their reply"
    REQUEST_TO_NON_MEMBER = "request_to_non_member", "requests to servers that are not members"
    REQUEST_UNENCODABLE = "request_unencodable", "requests that the protocol cannot express"
    UNKNOWN_SENDER = "unknown_sender", "requests of servers that are not members"
    UNMATCHED_REPLY = "unmatched_reply", "replies without a pending request"
    UPDATE_BUSY = "update_busy", "updates ignored because the server is busy"
    UPDATE_LIMIT = "update_limit", "updates ignored because too many are pending"
    UPDATE_SIZE = "update_size", "updates without data, or above the size limit"


class ClientEvent(CountedReason):
    """Messages that a client drops or cannot send."""

    BROADCAST_OF_OTHER_CLUSTER = "broadcast_of_other_cluster", "broadcasts of another cluster"
    BROADCAST_UNREACHABLE = "broadcast_unreachable", "broadcasts with an unusable address"
    BROADCAST_WITHOUT_ROOM = "broadcast_without_room", "broadcasts dropped because the caller takes them too slowly"
    ENTRIES_OUT_OF_ORDER = "entries_out_of_order", "entries that do not follow the previous entries"
    MALFORMED = "malformed", "malformed messages"
    NOT_SENT = "not_sent", "messages to a peer with a full queue"
    UNMATCHED_REPLY = "unmatched_reply", "replies without a pending request"
