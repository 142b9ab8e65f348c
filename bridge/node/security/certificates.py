"""The dates of certificates that an authority has signed for this node: judged, and watched by alarms.

A certificate that the node makes itself has no end (`consensus.net.tls`). A certificate of an authority counts from one
date to another, and outside of them others refuse it. The alarm stands from a month before the end.

The dates are compared with this machine's clock, and the clock may be wrong instead of the certificate. So each text
shows the date of the clock, and each action names the clock as well.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import trio

from bridge.node.events.alarms import Alarms
from consensus.net import CertificateError, NodeCertificate

ALARM = "certificate"
CONTROL_ALARM = "control-certificate"
WARN_BEFORE = timedelta(days=30)
LOOK_EVERY_S = 60.0
"""A clock that is set makes a certificate begin or end."""
RENEW_SIGNED = (
    "if this machine's clock is wrong, set it; otherwise have the authority sign a new one, put it in [consensus]"
    " certificate, and restart this node"
)

RENEW_CONTROL = (
    "if this machine's clock is wrong, set it; otherwise have the authority sign a new one, put it in [control]"
    " certificate, and restart this node"
)
RENEW_KAFKA = (
    "if this machine's clock is wrong, set it; otherwise have the authority sign a new one and put it in [kafka]"
    " certificate: a running node reads it again"
)


@dataclass(frozen=True, slots=True)
class Validity:
    """How long a certificate is valid, in words; `needs_action` includes a certificate that is not valid now."""

    text: str
    needs_action: bool = False
    is_unusable: bool = False


def validity_of(certificate: NodeCertificate, now: datetime) -> Validity:
    """Judge the dates of a certificate of an authority by the clock."""
    try:
        begins, ends = certificate.dates()
    except CertificateError as error:
        return Validity(str(error), needs_action=True, is_unusable=True)
    text = f"{certificate.path} is valid from {begins:%Y-%m-%d} until {ends:%Y-%m-%d}"
    if not begins <= now < ends:
        text = f"{text}, and this machine's clock shows {now:%Y-%m-%d}: others refuse it"
        return Validity(text, needs_action=True, is_unusable=True)
    return Validity(text, needs_action=ends - now < WARN_BEFORE)


async def watch_certificate(
    certificate: NodeCertificate, alarms: Alarms, show: Callable[[Validity, Alarms], None] | None = None
) -> None:
    """Show the alarm while the certificate is not valid, and in its last month, until cancelled.

    `show`: in place of the alarm about the certificate between servers.
    """
    while True:
        found = await trio.to_thread.run_sync(validity_of, certificate, datetime.now(UTC))
        (show or look_at_certificate)(found, alarms)
        await trio.sleep(LOOK_EVERY_S)


def look_at_certificate(found: Validity, alarms: Alarms) -> None:
    """Raise the alarm about the certificate that other servers see, or clear it."""
    if found.needs_action:
        alarms.set(ALARM, found.text, RENEW_SIGNED)
    else:
        alarms.clear(ALARM)


def show_control_certificate(found: Validity, alarms: Alarms) -> None:
    """Raise the alarm about the signed certificate of the control endpoint, or clear it."""
    if found.needs_action:
        alarms.set(CONTROL_ALARM, found.text, RENEW_CONTROL)
    else:
        alarms.clear(CONTROL_ALARM)
