"""Whether a client's commands are taken: the door in front of the mailbox's lane of proposals.

    can never be stored (none, too large)            ValueError
    the server has stopped                           NOT_LEADER, of nobody
    disk full or backlog too long, not the leader    NOT_LEADER: a client would wait here, while the leader has room
    disk full or backlog too long, or too many       BUSY, counted
    otherwise                                        admitted; answered when the core resolves it

Nothing that is refused leaves a trace, so whoever is told `BUSY` or `NOT_LEADER` may safely submit again elsewhere.
"""

from collections import Counter
from collections.abc import Callable

import trio

from consensus.core.effects import Outcome, ProposalResolved, Role, RoleChanged
from consensus.server.mailbox import Admission, Awaited, Mailbox, Proposal
from consensus.storage.records import ENTRY_LIMIT_BYTES


class Proposing:
    """Admits proposals to the mailbox, or refuses them."""

    def __init__(
        self,
        mailbox: Mailbox,
        admission: Admission,
        role: Callable[[], RoleChanged],
        is_overloaded: Callable[[], bool],
        dropped: Counter[str],
    ) -> None:
        self._mailbox = mailbox
        self._admission = admission
        self._role = role
        self._is_overloaded = is_overloaded
        self._dropped = dropped
        self._ended = False

    async def propose(self, commands: tuple[bytes, ...]) -> ProposalResolved:
        """Submit commands and wait for their fate; if cancelled, it is unknown."""
        awaited = Awaited[ProposalResolved]()
        proposal = self.submit(commands, awaited.give)
        try:
            answer = await awaited.wait()
        except trio.Cancelled:
            proposal.abandon()
            raise
        if answer is None:
            raise RuntimeError("a proposal was woken without an answer")
        return answer

    def submit(self, commands: tuple[bytes, ...], answered: Callable[[ProposalResolved], None]) -> Proposal:
        """Submit commands; `answered` is called once, at once or later, unless the proposal is abandoned before."""
        if not commands:
            raise ValueError("a proposal needs at least one command")
        largest = max(map(len, commands))
        if largest > ENTRY_LIMIT_BYTES:
            raise ValueError(f"a command has {largest} bytes; at most {ENTRY_LIMIT_BYTES} can be stored")
        proposal = Proposal(commands, self._admission, answered)
        refusal = self._refusal(proposal.size_bytes)
        if refusal is not None:
            answered(refusal)
        else:
            proposal.admit()
            self._mailbox.propose(proposal)
        return proposal

    def end(self) -> None:
        """The server stops: nothing is taken any more."""
        self._ended = True

    def _refusal(self, size_bytes: int) -> ProposalResolved | None:
        if self._ended:
            return ProposalResolved(0, Outcome.NOT_LEADER)
        role, overloaded = self._role(), self._is_overloaded()
        if overloaded and role.role is not Role.LEADER:
            return ProposalResolved(0, Outcome.NOT_LEADER, leader=role.leader)
        if overloaded or not self._admission.allows(size_bytes):
            self._dropped["proposal refused as busy"] += 1
            return ProposalResolved(0, Outcome.BUSY, leader=role.leader)
        return None
