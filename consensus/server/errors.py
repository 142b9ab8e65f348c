"""Why a server does not do what it was asked: the errors that its callers turn into answers of their own protocol."""

from consensus.core.model import ServerId


class ServerBusyError(Exception):
    """Too much is under way; nothing was done."""


class ServerStoppedError(Exception):
    """The server has stopped; a request that was under way gets no reply."""


class HaltedError(Exception):
    """The core has found that this server must not go on; the text says why and what to do."""


class NotLeaderError(Exception):
    """Only the leader can answer this; `leader` is the server to ask, if it is known."""

    def __init__(self, leader: ServerId | None) -> None:
        who = (
            "the leader is unknown: try again in a moment"
            if leader is None
            else f"server {leader} leads: send the request there"
        )
        super().__init__(f"this server does not lead; {who}")
        self.leader = leader
