"""The application's own say about joiners, asked so that its mistakes stay its own.

    admit(joiner) ──▶ None              admitted
                  ──▶ a JoinNak         refused with it
                  ──▶ raises, or returns what is neither: refused (POLICY_FAILED), counted, an alarm that ends with the
                      next joiner about whom the function does decide

The function runs in the middle of the core's step. An exception out of there would end the member, and a joiner can
often choose what makes the function raise (its metadata); letting everybody in instead would turn a mistake in the
check into no check.
"""

from collections.abc import Callable

from gossip.core.admission import AdmissionPolicy
from gossip.core.effects import Alarm, AlarmKind
from gossip.core.member import NodeId, NodeInfo
from gossip.core.messages import JoinNak
from gossip.core.refusal import DOMAIN, RefusalCode
from gossip.node.counters import Counters, Loss
from gossip.wire.decoding import decode
from gossip.wire.encoding import encode
from gossip.wire.identity import PUBLIC_KEY_BYTES
from gossip.wire.layout import ETAG_LIMIT_BYTES


class AdmissionCheck:
    """Asks the application's `admit`."""

    def __init__(self, admit: AdmissionPolicy, counters: Counters, publish: Callable[[Alarm], None]) -> None:
        self._admit = admit
        self._counters = counters
        self._publish = publish
        self._is_failing = False

    def ask(self, joiner: NodeInfo) -> JoinNak | None:
        """The refusal for a joiner, or nothing."""
        try:
            decided = self._admit(joiner)
            _check(decided)
        except Exception as error:  # noqa: BLE001 - the application's code may raise whatever it likes
            self._failed(error)
            return JoinNak(DOMAIN, RefusalCode.POLICY_FAILED)
        if self._is_failing:
            self._is_failing = False
            self._publish(Alarm(AlarmKind.ADMIT_FAILED, "`admit` decides about joiners again", over=True))
        return decided

    def _failed(self, error: Exception) -> None:
        self._counters.drop(Loss.ADMIT_FAILED)
        if not self._is_failing:
            self._is_failing = True
            text = (
                f"`admit` did not decide about a joiner ({type(error).__name__}: {error}), so it was refused, and so "
                "is everybody for whom that happens: make `admit` return None or a JoinNak for any joiner, whatever "
                "its metadata"
            )
            self._publish(Alarm(AlarmKind.ADMIT_FAILED, text))


def offer_to(applicant: NodeInfo, offer_keys: Callable[[NodeId, bytes], bytes] | None) -> bytes:
    """What the application has to say to somebody with a retired key; nothing if it cannot say it."""
    if offer_keys is None:
        return b""
    try:
        offer = offer_keys(applicant.node_id, applicant.credential[:PUBLIC_KEY_BYTES])
    except Exception:  # noqa: BLE001 - the application's code may raise whatever it likes, and he is refused anyhow
        return b""
    return offer if len(offer) <= ETAG_LIMIT_BYTES else b""


def _check(decided: object) -> None:
    if decided is None:
        return
    if not isinstance(decided, JoinNak):
        raise TypeError(f"it returned {decided!r:.60}, which is neither None nor a JoinNak")
    decode(encode(decided))  # else the joiner would drop it as malformed, and ask for ever
