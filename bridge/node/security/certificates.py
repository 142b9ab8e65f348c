"""The dates of certificates that an authority has signed for this node: checks and alarms.

A certificate that the node makes itself does not expire (`consensus.net.tls`). A certificate of an authority is valid
between two dates, and other servers refuse it outside of them. The alarm is active from a month before the end.

The dates are compared with this machine's clock, and the fault may be in the clock instead of the certificate. So the
text about an invalid certificate shows the date of the clock, and each action mentions the clock.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trio
from msgspec import Struct

from bridge.api.alarms import CERTIFICATE, AlarmType
from bridge.node.events.alarms import Alarms
from consensus.net import CertificateError, NodeCertificate

WARN_BEFORE = timedelta(days=30)
LOOK_EVERY_S = 60.0
"""Seconds between checks: a corrected clock may make a certificate valid or invalid."""


class Validity(Struct, frozen=True):
    """The validity of a certificate as text; `needs_action` includes a certificate that is not valid now."""

    text: str
    needs_action: bool = False
    is_unusable: bool = False


def validity_of(certificate: NodeCertificate, now: datetime) -> Validity:
    """Compare the dates of an authority's certificate with the clock."""
    try:
        dates: tuple[datetime, datetime] | CertificateError = certificate.dates()
    except CertificateError as error:
        dates = error
    return validity_at(certificate.path, dates, now)


def validity_at(path: Path, dates: tuple[datetime, datetime] | CertificateError, now: datetime) -> Validity:
    """Compare the dates of a certificate, or their error, with the clock; `path` is its file."""
    if isinstance(dates, CertificateError):
        return Validity(str(dates), needs_action=True, is_unusable=True)
    begins, ends = dates
    text = f"{path} is valid from {begins:%Y-%m-%d} until {ends:%Y-%m-%d}"
    if not begins <= now < ends:
        text = f"{text}, and this machine's clock shows {now:%Y-%m-%d}: others refuse it"
        return Validity(text, needs_action=True, is_unusable=True)
    return Validity(text, needs_action=ends - now < WARN_BEFORE)


async def watch_certificate(certificate: NodeCertificate, alarms: Alarms, alarm: AlarmType = CERTIFICATE) -> None:
    """Show the alarm while the certificate is not valid, and in its last month, until canceled."""
    while True:
        found = await trio.to_thread.run_sync(validity_of, certificate, datetime.now(UTC))
        show_validity(found, alarms, alarm)
        await trio.sleep(LOOK_EVERY_S)


def show_validity(found: Validity, alarms: Alarms, alarm: AlarmType) -> None:
    """Set the alarm about a certificate, or clear it."""
    if found.needs_action:
        alarms.set(alarm, found.text)
    else:
        alarms.clear(alarm)
