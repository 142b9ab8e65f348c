"""Counters of a listener for Kafka's clients: connections, requests, and the reasons for closed connections.

    ListenerEvent  ordinary events, with the numbers of requests and bytes
    ListenerClose  reasons for the end of a connection

The identifiers name the counters in views and metrics. This module does not import Kafka's messages, so a program
without the extra has the identifiers and the meanings.
"""

from consensus.core.drops import CountedReason


class ListenerEvent(CountedReason):
    """Ordinary events of a listener."""

    BYTES_RECEIVED = "bytes_received", "Bytes of requests that the Kafka listener has served"
    BYTES_SENT = "bytes_sent", "Bytes of answers to served requests of the Kafka listener. It grows as consumers read"
    CONNECTIONS_ACCEPTED = "connections_accepted", "Accepted connections of the Kafka listener, before any login"
    LOGINS = "logins", "Accepted logins of the Kafka listener. A steep rise means that clients reconnect without end"
    REQUESTS_ANSWERED = "requests_answered", "Served requests of the Kafka listener. It grows with its clients' work"


class ListenerClose(CountedReason):
    """Connections by the reason of their end."""

    ANSWER_BYTES = "answer_bytes", "connections closed because the untaken answers of all clients are too large"
    ANSWER_ELSEWHERE = "answer_elsewhere", "connections with a request that another server must answer"
    ANSWER_TIMEOUT = "answer_timeout", "connections of clients that do not take an answer in time"
    ANSWER_UNENCODABLE = "answer_unencodable", "connections with a request whose version cannot express the answer"
    BROKEN = "broken", "connections that broke"
    CROWDED = "crowded", "connections closed because too many wait for their turn"
    EXHAUSTED = "exhausted", "connections closed because this process may not open more files (`ulimit -n`)"
    HANDSHAKE_TIMEOUT = "handshake_timeout", "connections without a handshake or login in time"
    HUNG_UP = "hung_up", "connections that the client closed"
    HUNG_UP_EARLY = "hung_up_early", "connections that the client closed before it sent anything"
    IDLE = "idle", "connections without a request for a long time"
    LOGIN_FAILED = "login_failed", "connections with a failed login"
    MALFORMED = "malformed", "connections with bytes that are not a request of Kafka's protocol"
    REQUEST_BEFORE_LOGIN = "request_before_login", "connections with a request before the login"
    REQUEST_BYTES = "request_bytes", "connections closed because the open requests of all clients are too large"
    REQUEST_INCOMPLETE = "request_incomplete", "connections with a request that was not complete in time"
    SERVER_BUSY = "server_busy", "connections closed because the server is busy or has stopped"
    SERVICE_TIMEOUT = "service_timeout", "connections with a request that this node did not answer in time"
    SILENT = "silent", "connections that did not send anything, or did not get a turn, in time"
    TLS_FAILED = "tls_failed", "connections with a failed TLS handshake"
    TOO_MANY = "too_many", "connections above the limit of all connections"
    TOO_MANY_OF_SOURCE = "too_many_of_source", "connections above the limit of one source"
    UNSERVED_VERSION = "unserved_version", "connections with a request, not ApiVersions, in an unsupported version"
