"""Submission of entries for clients: each is applied at most once, even if a leader fails during the submission.

    entry ─▶ names a request? else add the next number of this node ─▶ signed, if it acts on the farm
          ─▶ replica, repeated while its fate is unknown ─▶ committed ─▶ applied here
                                          ├─▶ session table: position of the first copy │ expired
                                          └─▶ applied state: the reason, if it did not have an effect

A submission of unknown fate is submitted again with the same bytes. That may leave several copies in the log. Only the
first copy has an effect, and the reply contains its position. A caller that names the request may also repeat it
through another node, until the farm drops the request.

The number becomes the first member of the entry, which is otherwise unchanged. A user with access to this node may act
on the farm through it. So this node signs entries that act on the farm and lack a proof. Other entries are submitted
unchanged. An entry without room for a number (too large, or nested too deeply) is submitted once and never repeated.

An update by ØMQ Raft has its client's reqid instead of a number (`bridge.core.state.reqids`). Its reply contains the
position of the first copy, regardless of the node that submitted that copy.
"""

import json
from collections.abc import Mapping
from contextlib import suppress

import trio
from msgspec import Struct
from msgspec.structs import replace

from bridge.api.control import SubmitAnswer, SubmitOutcome
from bridge.core.log.fields import ENTRY_LIMIT_BYTES
from bridge.core.log.hashes import HASH_CHARACTERS
from bridge.core.log.kinds import KINDS
from bridge.core.log.records import (
    CostFactor,
    Exclusion,
    Foreign,
    KafkaRecord,
    LeadersRecord,
    Publication,
    Record,
    Removal,
    request_of,
)
from bridge.core.state.farm_state import SESSION_LIMITS
from bridge.core.state.reqids import Update, request_text
from bridge.node.raft.applied_state import AppliedState
from bridge.node.raft.entry_signer import EntrySigner
from bridge.node.raft.replica import LEADERS_OWN_TEXT, Replica, is_leaders_own
from bridge.wire.log.entries import decode, encode, kinds_named
from bridge.wire.log.proof import ends_like_proof
from consensus import Index, ServerStoppedError
from consensus.sessions import RequestId, RequestNumbers

EXPIRED = (
    "the farm no longer stores this request id: the entry may have been applied before, and was not applied now."
    " Check the log; to submit the entry again, use a new request id"
)


class SubmittedUpdate(Struct, frozen=True):
    """An update by ØMQ Raft as an entry of the log, and as the farm's state identifies it."""

    entry: bytes
    update: Update


class Submitting:
    """The submission of clients' entries; `name` identifies one run of this node."""

    def __init__(self, replica: Replica, applied_state: AppliedState, signer: EntrySigner, name: str) -> None:
        self._replica = replica
        self._applied_state = applied_state
        self._signer = signer
        self._numbers = RequestNumbers(name, self._open_session, SESSION_LIMITS)

    async def submit(self, entry: bytes, named: RequestId | None = None) -> SubmitAnswer:
        """Have one JSON object committed, and applied at most once under `named` or the request in the object."""
        if is_leaders_own(entry):
            return _refused(LEADERS_OWN_TEXT)
        own = self._applied_state.request_named_in(entry)
        if named not in {None, own} and (own is not None or ends_like_proof(entry)):
            named_there = "no request" if own is None else f"the request {own}"
            hint = ": add it before you sign" if own is None else ""
            return _refused(f"the entry names {named_there}, not {named}{hint}")
        if named is not None and own is None:
            entry = sealed(entry, named)
            if self._applied_state.request_named_in(entry) != named:
                return _refused(
                    "a request id cannot be put into this entry: it is too large or too nested, or names another one"
                )
        if own is not None or named is not None:
            return await self._submit(entry, own or named)
        if ends_like_proof(entry):
            return await self._submit(entry, None)
        return await self._submit_numbered(entry)

    def prepare(self, entry: bytes, reqid: bytes) -> SubmittedUpdate | None:
        """Return the entry with its reqid, and with this node's proof if it acts on the farm.

        Return None if the reqid cannot be added. Then the entry is too large or too nested, names another request, or
        carries a proof without this request.
        """
        named = request_text(reqid)
        if request_of(decode(entry)) != named:
            if ends_like_proof(entry):
                return None
            entry = sealed(entry, named)
        try:
            entry = self._signer.sign_for_operator(entry)
        except ValueError:
            return None
        update = self._applied_state.update_in(entry)
        return None if update is None or update.reqid != reqid else SubmittedUpdate(entry, update)

    async def submit_update(self, update: SubmittedUpdate) -> SubmitAnswer:
        """Have the update committed, and applied at most once under its reqid."""
        answer = await self._replica.submit(update.entry, repeat_unknown=True)
        if answer.outcome is not SubmitOutcome.COMMITTED or answer.index is None:
            return answer
        with trio.move_on_after(self._replica.patience.apply_s):
            await self._replica.server.wait_applied(answer.index)
            reqids = self._applied_state.farm.reqids
            first = reqids.index_of(update.update)
            if first is not None:
                return replace(answer, index=first)
            if reqids.is_skipped(answer.index):
                return SubmitAnswer(outcome=SubmitOutcome.EXPIRED, reason=EXPIRED)
            return answer  # the update was applied, and then dropped from a full table
        return SubmitAnswer(outcome=SubmitOutcome.UNKNOWN)

    async def _submit_numbered(self, entry: bytes) -> SubmitAnswer:
        request = await self._numbers.take()
        if request is None:
            raise RuntimeError("a session was not opened")
        try:
            numbered = sealed(entry, request)
            if self._applied_state.request_named_in(numbered) != request:
                return await self._submit(entry, None)
            answer = await self._submit(numbered, request)
            if answer.outcome is SubmitOutcome.EXPIRED:
                self._numbers.session_expired(request)
            return answer
        finally:
            self._numbers.release(request)

    async def _submit(self, entry: bytes, request: RequestId | None) -> SubmitAnswer:
        try:
            entry = self._signer.sign_for_operator(entry)
        except ValueError as error:
            return _refused(f"the entry cannot be signed: {error}")
        if request is None:
            return await self._submit_once(entry)
        answer = replace(await self._replica.submit(entry, repeat_unknown=True), request=str(request))
        if answer.outcome is not SubmitOutcome.COMMITTED or answer.index is None:
            return answer
        with trio.move_on_after(self._replica.patience.apply_s), suppress(ServerStoppedError):
            await self._replica.server.wait_applied(answer.index)
            session = self._applied_state.request_of(entry)
            first = None if session is None else self._applied_state.farm.position_of(session)
            if first is None:
                return SubmitAnswer(outcome=SubmitOutcome.EXPIRED, reason=EXPIRED, request=str(request))
            refusal = self._applied_state.refusal_of(first.index)
            return replace(answer, index=first.index, term=first.term, reason=refusal or "")
        text = "this node has not applied it yet, so it is not known if the entry is a repetition"
        reason = f"committed at index {answer.index}; {text}"
        return SubmitAnswer(outcome=SubmitOutcome.UNKNOWN, reason=reason, request=str(request))

    async def _submit_once(self, entry: bytes) -> SubmitAnswer:
        """Submit an entry without a request once; if it acts on the farm, the reply contains the result."""
        answer = await self._replica.submit(entry)
        if answer.outcome is SubmitOutcome.COMMITTED and answer.index is not None and ends_like_proof(entry):
            with trio.move_on_after(self._replica.patience.apply_s), suppress(ServerStoppedError):
                await self._replica.server.wait_applied(answer.index)
            return replace(answer, reason=self._applied_state.refusal_of(answer.index) or "")
        return answer

    async def _open_session(self) -> Index | None:
        await trio.lowlevel.checkpoint()
        return self._applied_state.state.applied_index


_COMMAND_FOR = {each.member: each.command for each in KINDS if each.command} | {"handover": "`garlicfarm transfer`"}
"""The command for an entry of a kind."""


_LEAF = "a" * HASH_CHARACTERS
_EXAMPLES: Mapping[str, Removal | Exclusion | CostFactor] = {
    "removal": Removal(3, removed=True),
    "exclusion": Exclusion(_LEAF, excluded=True),
    "cost": CostFactor(_LEAF, 1.5),
}
_FORM_OF = {kind: encode(example).decode() for kind, example in _EXAMPLES.items()}
"""An example of the kinds that operators write by hand; the hash is an address without its ending."""


def _refused(reason: str) -> SubmitAnswer:
    return SubmitAnswer(outcome=SubmitOutcome.REFUSED, reason=reason)


def entry_refusal(entry: bytes) -> str | None:
    """Return the reason why no client may submit this entry; None if clients may."""
    if len(entry) > ENTRY_LIMIT_BYTES:
        return f"the entry has {len(entry)} bytes, at most {ENTRY_LIMIT_BYTES} are accepted"
    try:
        value = json.loads(entry)
    except (ValueError, RecursionError) as error:
        return f"the entry is not JSON: {error}"
    if not isinstance(value, dict):
        return "the entry is not a JSON object"
    return _kind_refusal(entry, decode(entry))


def _kind_refusal(entry: bytes, record: Record) -> str | None:
    if isinstance(record, LeadersRecord):
        return "clock entries, and those about the members of the farm, are written by the leader alone"
    if isinstance(record, KafkaRecord):
        return "entries about Kafka's producers and consumer groups are written by nodes alone"
    if isinstance(record, Publication):
        return "publications are written by the publisher alone"
    if isinstance(record, Foreign) and (named := kinds_named(entry)):
        return _malformed(named, record.reason)
    return None


def _malformed(named: tuple[str, ...], reason: str) -> str:
    """Return the refusal of an object with a reserved member that is not a valid entry: it would not have an effect."""
    commands = "; ".join(dict.fromkeys(_COMMAND_FOR[kind] for kind in named if kind in _COMMAND_FOR))
    forms = " or ".join(_FORM_OF[kind] for kind in named if kind in _FORM_OF)
    instead = f". Use {commands}" if commands else ""
    instead += f", or with a client key an entry such as {forms}" if forms else ""
    return (
        f"the member {' and '.join(named)} is reserved for entries of the farm, and this entry is not a valid one"
        f" ({reason}): it would be in the log without any effect{instead}"
    )


def sealed(entry: bytes, request: RequestId | str) -> bytes:
    """Return the JSON object with the member `request` in front; the other bytes are unchanged."""
    head, brace, members = entry.partition(b"{")
    member = b'"request":' + json.dumps(str(request)).encode()
    return head + brace + member + (b"," if members.strip() != b"}" else b"") + members
