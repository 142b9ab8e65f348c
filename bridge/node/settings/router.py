"""The settings of `[router]`: the router of this node, and the node's connection to it.

    kind = "file"                                  no router; the structure is kept in `directory`
    kind = "i2cp"                                  a real one
      software = "java" | "i2pd"
      i2cp = "127.0.0.1:7654"                      plain: loopback or a private address; with i2cp_certificate: TLS
      i2cp_username, i2cp_password_file            if the router requires them
      i2pcontrol = "https://127.0.0.1:7650"        status; if absent, some figures stay unknown
      i2pcontrol_password_file, i2pcontrol_certificate
      sam = "127.0.0.1:7656"                       its SAM bridge, for the node's directory; "off" without one

Passwords are in files of mode 0600, never in the configuration, which operators may show to others. Each kind has its
own class, so that settings of the other kind are refused like unknown ones. Otherwise an operator could rely on a
setting without effect.
"""

import dataclasses
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from msgspec.structs import replace

from bridge.node.router.link import CONTROL_PATHS, I2CP_PORT, ControlAccess, Credentials, Link, Software
from bridge.node.security.key_files import read_password
from bridge.node.settings.choices import RouterKind
from bridge.node.settings.declared import Setting
from bridge.node.settings.reader import Section
from bridge.sam.connection import SAM_PORT
from gossip.node import is_private, numeric, numeric_address, parse_endpoint

if TYPE_CHECKING:
    from bridge.node.router.i2cp_router import I2cpRouterAccess

_I2CP_DEFAULT: Final = Link("127.0.0.1", I2CP_PORT)
_OFF: Final = "off"
_KIND: Final = Setting('`"file"`: without a router; `"i2cp"`: a real router', shared=True, reported="routerKind")


@dataclass(frozen=True, slots=True)
class ControlUrl:
    """The URL of a router's I2PControl; an empty path is the default of the router's software."""

    link: Link
    is_encrypted: bool
    path: str = ""

    def __str__(self) -> str:
        return f"{'https' if self.is_encrypted else 'http'}://{self.link}{self.path}"


def _link(text: str) -> Link:
    address = numeric_address(text)
    return Link(address.host, address.port)


def _sam(text: str) -> Link | None:
    link = None if text == _OFF else _link(text)
    if link is not None and not is_private(link.host):
        raise ValueError(
            f"{link.host} is not a private address, and plain SAM shows the key of the directory to any machine on"
            f' the way: use the router\'s private address, or "{_OFF}"'
        )
    return link


def _control_url(text: str) -> ControlUrl:
    scheme, separator, rest = text.partition("://")
    place, slash, path = rest.partition("/")
    try:
        host, port = parse_endpoint(place)
    except ValueError:
        host, port = "", 0
    canonical = numeric(host)
    if scheme not in {"http", "https"} or not separator or canonical is None:
        raise ValueError(f"{text[:60]!r} is not of the form https://127.0.0.1:7650, with a numeric address")
    if scheme == "http" and not ip_address(canonical).is_loopback:
        raise ValueError("its password controls the router: send it over plain http to loopback only")
    return ControlUrl(Link(canonical, port), scheme == "https", f"{slash}{path}" if path else "")


_SAM: Final = Setting(
    "the router's SAM bridge, on loopback or a private address. The node opens its directory there, which returns"
    f' signed structures to clients (`garlicfarm link`). `"{_OFF}"`: without a directory',
    default=f'kind `i2cp`: port {SAM_PORT} of the host in `i2cp` if that is private; otherwise `"{_OFF}"`',
    example=f"127.0.0.1:{SAM_PORT}",
    parse=_sam,
    none=_OFF,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRouterSettings:
    """`[router]` without a router."""

    kind: Annotated[RouterKind, _KIND] = RouterKind.FILE
    directory: Annotated[
        Path,
        Setting(
            "kind `file`: the directory of the structures",
            default="`published` below `state_dir`",
            example="/var/lib/garlicfarm/published",
        ),
    ]
    sam: Annotated[Link | None, dataclasses.replace(_SAM, none="")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class I2cpRouterSettings:
    """`[router]` with a router that the node reaches by I2CP."""

    kind: Annotated[RouterKind, _KIND] = RouterKind.I2CP
    software: Annotated[Software, Setting("kind `i2cp`: the kind of router")] = Software.JAVA
    i2cp: Annotated[
        Link,
        Setting("kind `i2cp`: its I2CP port; without TLS on loopback or a private address", parse=_link),
    ] = _I2CP_DEFAULT
    i2cp_certificate: Annotated[
        Path | None, Setting("kind `i2cp`: the router's certificate (PEM), for I2CP over TLS")
    ] = None
    i2cp_username: Annotated[str | None, Setting("kind `i2cp`: the user, if the router requires one")] = None
    i2cp_password_file: Annotated[Path | None, Setting("kind `i2cp`: the user's password: one line, mode 0600")] = None
    i2pcontrol: Annotated[
        ControlUrl | None,
        Setting(
            "kind `i2cp`: the router's status, `http://127.0.0.1:7657` (Java) or `https://127.0.0.1:7650` (i2pd)",
            example="http://127.0.0.1:7657",
            parse=_control_url,
        ),
    ] = None
    i2pcontrol_password_file: Annotated[
        Path | None, Setting("kind `i2cp`: the password of I2PControl: one line, mode 0600")
    ] = None
    i2pcontrol_certificate: Annotated[
        Path | None, Setting("kind `i2cp`: the certificate of an I2PControl on another machine")
    ] = None

    sam: Annotated[Link | None, _SAM] = None

    def access(self) -> "I2cpRouterAccess":
        """Read the passwords and return the data for a connection; raise KeyFileError."""
        # Imported here: a node without a router does not need I2CP, whose modules take a megabyte.
        from bridge.node.router.i2cp_publishing import I2cpAccess  # noqa: PLC0415 - see above
        from bridge.node.router.i2cp_router import I2cpRouterAccess  # noqa: PLC0415 - see above

        credentials = control = None
        if self.i2cp_username is not None and self.i2cp_password_file is not None:
            credentials = Credentials(self.i2cp_username, read_password(self.i2cp_password_file))
        if self.i2pcontrol is not None and self.i2pcontrol_password_file is not None:
            certificate = self.i2pcontrol_certificate if self.i2pcontrol.is_encrypted else None
            unchecked = self.i2pcontrol.is_encrypted and certificate is None
            link = replace(self.i2pcontrol.link, certificate=certificate, unchecked_tls=unchecked)
            password = read_password(self.i2pcontrol_password_file)
            control = ControlAccess(link, self.software, password, self.i2pcontrol.path)
        link = replace(self.i2cp, certificate=self.i2cp_certificate)
        return I2cpRouterAccess(I2cpAccess(link, self.software, credentials), control)


RouterSettings = FileRouterSettings | I2cpRouterSettings


def read_router(section: Section, state_dir: Path, *, demo: bool) -> RouterSettings:
    """Read `[router]`."""
    kind = section.values(FileRouterSettings, directory=None)["kind"]
    if kind is RouterKind.FILE:
        return section.read(FileRouterSettings, {"directory": state_dir / "published"}, kind=kind)
    found = section.read(I2cpRouterSettings, kind=kind)
    if not section.has("sam") and is_private(found.i2cp.host):
        found = dataclasses.replace(found, sam=Link(found.i2cp.host, SAM_PORT))
    if demo:
        section.problem(
            "kind", '"i2cp" with demo = true: a demonstration\'s keys never reach a real router; use "file"'
        )
    if (found.i2cp_username is None) is not (found.i2cp_password_file is None):
        section.problem("i2cp_username", "i2cp_username and i2cp_password_file belong together: give both or neither")
    if found.i2cp_certificate is None and not is_private(found.i2cp.host):
        section.problem(
            "i2cp",
            f"{found.i2cp.host} is not a private address, and plain I2CP shows the published destination and the"
            " address of its publisher to any machine on the way: use the router's private address, or TLS with"
            " i2cp_certificate",
        )
    for key, path in (
        ("i2cp_certificate", found.i2cp_certificate),
        ("i2pcontrol_certificate", found.i2pcontrol_certificate),
    ):
        if path is not None and not path.is_file():
            section.problem(key, f"{path} does not exist: copy the router's certificate (PEM) there")
    if section.has("i2pcontrol") is not section.has("i2pcontrol_password_file"):
        section.problem("i2pcontrol", "i2pcontrol and i2pcontrol_password_file belong together: give both, or neither")
    return _with_control(section, found)


def _with_control(section: Section, settings: I2cpRouterSettings) -> I2cpRouterSettings:
    """Return the settings with the default path of I2PControl for the router's software."""
    control = settings.i2pcontrol
    if control is None:
        return settings
    if control.is_encrypted and not control.link.is_loopback and settings.i2pcontrol_certificate is None:
        section.problem("i2pcontrol", "on another machine it needs a known certificate: give i2pcontrol_certificate")
    return dataclasses.replace(
        settings, i2pcontrol=dataclasses.replace(control, path=control.path or CONTROL_PATHS[settings.software])
    )
