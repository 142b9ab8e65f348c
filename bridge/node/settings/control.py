"""The settings of `[control]`: whether the control endpoint is open to other machines, and by which names.

    not set          the Unix socket alone
    listen           TLS there as well; a client shows a token in each request
    names            more names and addresses for the certificate that the node makes for this endpoint
    certificate      the operator's own in its place, signed by an authority
    open_health      /healthz and /readyz answer without a token, for those who balance load or start and stop nodes
    page             a page for browsers at /, which shows the farm to those who have a token

What is open without a token says nothing of the farm but how it is.
"""

from dataclasses import dataclass
from pathlib import Path

from bridge.node.settings.reader import Section
from gossip import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSettings:
    """A control endpoint on TCP."""

    listen: Address
    names: tuple[str, ...] = ()
    certificate: Path | None = None
    """Certificate, what leads to the authority, and private key in PEM, mode 0600; None: the node makes its own."""
    open_health: bool = False
    page: bool = False


def control_settings(section: Section) -> ControlSettings | None:
    """The settings; None if the endpoint stays on its socket."""
    listen, names = section.address("listen"), section.texts("names")
    certificate, open_health, page = section.path("certificate"), section.flag("open_health"), section.flag("page")
    section.finish()
    if listen is None:
        if not section.is_empty and not section.has("listen"):
            section.problem("listen", 'missing: the other settings of [control] are for it, such as "192.168.7.5:7650"')
        return None
    if certificate is not None and names:
        section.problem("names", "the names are those of control.certificate: leave one of the two out")
    return ControlSettings(listen=listen, names=names, certificate=certificate, open_health=open_health, page=page)
