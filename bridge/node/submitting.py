"""Entries that others have this node submit, applied once each although a leader may fail while they are under way.

    entry ─▶ names a request? else give it the next number of this node ─▶ replica, repeated while its fate is unknown
          ─▶ committed ─▶ applied here ─▶ the table tells where its first copy stands │ expired
                                          └─▶ the ledger tells why it changed nothing, if a wish was refused

A submission of which nobody knows whether it was committed is submitted again, the same bytes. That may leave several
copies in the log; all but the first have no effect, and the answer gives the place of the first. A caller that names
the request itself may also repeat it through another node, for as long as the farm remembers it.

The number is put in front of the members of the entry, which is otherwise left as it is. An entry into which none can
be put (it is too large, or nested beyond what the farm reads) is submitted as it is and never repeated.
"""

import json
from dataclasses import replace

import trio

from bridge.core.control import SubmitAnswer, SubmitOutcome
from bridge.core.farm_state import SESSION_LIMITS
from bridge.node.ledger import Ledger
from bridge.node.replica import Replica
from consensus.core.position import Index
from consensus.core.sessions import RequestId
from consensus.node.request_numbers import RequestNumbers

EXPIRED = (
    "the farm has forgotten this request: whether it was applied before is not known, and now it was not. Look at the"
    " log; to submit it all the same, give it a new request id"
)


class Submitting:
    """`name` is this node's, unique to this life of it."""

    def __init__(self, replica: Replica, ledger: Ledger, name: str) -> None:
        self._replica = replica
        self._ledger = ledger
        self._numbers = RequestNumbers(name, self._open_session, SESSION_LIMITS)

    async def submit(self, entry: bytes, named: RequestId | None = None) -> SubmitAnswer:
        """Have one JSON object committed, and applied at most once under `named`, or under the request it names."""
        own = self._ledger.request_of(entry)
        if named is not None and own is None:
            entry = sealed(entry, named)
            if self._ledger.request_of(entry) != named:
                reason = "a request id cannot be put into this entry: it is too large, too nested, or has another one"
                return SubmitAnswer(SubmitOutcome.REFUSED, reason=reason)
        elif named not in {None, own}:
            return SubmitAnswer(SubmitOutcome.REFUSED, reason=f"the entry names the request {own}, not {named}")
        if named is not None or own is not None:
            return await self._submit(entry, own or named)
        return await self._submit_numbered(entry)

    async def _submit_numbered(self, entry: bytes) -> SubmitAnswer:
        request = await self._numbers.take()
        if request is None:
            raise RuntimeError("a session was not opened")
        try:
            numbered = sealed(entry, request)
            if self._ledger.request_of(numbered) != request:
                return await self._replica.submit(entry)
            answer = await self._submit(numbered, request)
            if answer.outcome is SubmitOutcome.EXPIRED:
                self._numbers.forgotten(request)
            return answer
        finally:
            self._numbers.answered(request)

    async def _submit(self, entry: bytes, request: RequestId | None) -> SubmitAnswer:
        if request is None:
            return await self._replica.submit(entry)
        answer = replace(await self._replica.submit(entry, repeat_unknown=True), request=str(request))
        if answer.outcome is not SubmitOutcome.COMMITTED or answer.index is None:
            return answer
        with trio.move_on_after(self._replica.apply_patience_s):
            await self._replica.server.wait_applied(answer.index)
            first = self._ledger.farm.position_of(request)
            if first is None:
                return SubmitAnswer(SubmitOutcome.EXPIRED, reason=EXPIRED, request=str(request))
            refusal = self._ledger.refusal_of(first.index)
            return replace(answer, index=first.index, term=first.term, reason=refusal or "")
        reason = f"committed at index {answer.index}; this node has not applied it yet, so whether it was a repetition"
        return SubmitAnswer(SubmitOutcome.UNKNOWN, reason=f"{reason} is not known", request=str(request))

    async def _open_session(self) -> Index | None:
        await trio.lowlevel.checkpoint()
        return self._ledger.state.applied_index


def sealed(entry: bytes, request: RequestId) -> bytes:
    """The JSON object with the member `request` in front; otherwise byte for byte the same."""
    head, brace, members = entry.partition(b"{")
    member = b'"request":' + json.dumps(str(request)).encode()
    return head + brace + member + (b"," if members.strip() != b"}" else b"") + members
