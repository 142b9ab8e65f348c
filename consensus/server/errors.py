"""Errors of a server's requests, which its callers turn into replies of their protocol."""

from consensus.core.model import ServerId


class ServerBusyError(Exception):
    """A limit for pending work is reached; nothing was done."""


class ServerStoppedError(Exception):
    """The server has stopped; a request under way does not get a reply."""


class HaltedError(Exception):
    """The core has found that this server must stop; the text contains the reason and the remedy."""


class NotLeaderError(Exception):
    """Only the leader can serve this request; `leader` is the server to try next, if known."""

    def __init__(self, leader: ServerId | None) -> None:
        who = (
            "the leader is unknown: try again in a moment"
            if leader is None
            else f"server {leader} leads: send the request there"
        )
        super().__init__(f"this server does not lead; {who}")
        self.leader = leader
