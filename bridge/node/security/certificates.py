"""The end of the certificate that this node shows to other servers: judged, and watched by an alarm.

A certificate of the node's own making ends after ten years and is made anew by a restart; one of an authority ends when
the authority said so, and then no server of the farm connects to this one any more. So a month before, it is an alarm.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import trio

from bridge.node.events.alarms import Alarms
from consensus.net import CertificateError, NodeCertificate

ALARM = "certificate"
WARN_BEFORE = timedelta(days=30)
LOOK_EVERY_S = 3_600.0
RENEW_OWN = "restart this node: it makes a new one, and gossip announces it"
RENEW_SIGNED = "have the authority sign a new one, put it in [consensus] certificate, and restart this node"


@dataclass(frozen=True, slots=True)
class Validity:
    """How long a certificate will serve, in words; `ends_soon` includes one that has ended."""

    text: str
    action: str
    ends_soon: bool = False
    is_unusable: bool = False


def validity_of(certificate: NodeCertificate, now: datetime, *, signed: bool) -> Validity:
    """How long a certificate will serve. `signed`: by an authority."""
    action = RENEW_SIGNED if signed else RENEW_OWN
    try:
        ends = certificate.ends()
    except CertificateError as error:
        return Validity(str(error), action, ends_soon=True, is_unusable=True)
    text = f"{certificate.path} is valid until {ends:%Y-%m-%d}"
    if ends <= now:
        return Validity(f"{text}: no server connects to this one", action, ends_soon=True, is_unusable=True)
    return Validity(text, action, ends_soon=ends - now < WARN_BEFORE)


async def watch_certificate(certificate: NodeCertificate | None, alarms: Alarms, *, signed: bool) -> None:
    """Have an alarm stand from a month before the end, until cancelled."""
    while certificate is not None:
        look_at_certificate(certificate, alarms, signed=signed)
        await trio.sleep(LOOK_EVERY_S)


def look_at_certificate(certificate: NodeCertificate, alarms: Alarms, *, signed: bool) -> None:
    """Raise the alarm, or take it back."""
    found = validity_of(certificate, datetime.now(UTC), signed=signed)
    if found.ends_soon:
        alarms.set(ALARM, found.text, found.action)
    else:
        alarms.clear(ALARM)
