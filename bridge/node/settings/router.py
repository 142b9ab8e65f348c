"""The settings of `[router]`: which router stands behind the node, and how it is spoken to.

    kind = "file"                                  no router; the structure is kept in `directory`
    kind = "i2cp"                                  a real one
      software = "java" | "i2pd"
      i2cp = "127.0.0.1:7654"                      plain: loopback or a private address; with i2cp_certificate: TLS
      i2cp_username, i2cp_password_file            where the router demands them
      i2pcontrol = "https://127.0.0.1:7650"        status; absent: what only it can tell stays unknown
      i2pcontrol_password_file, i2pcontrol_certificate

Passwords lie in files of mode 0600, never in the configuration, which operators pass around. Settings of the other kind
are refused like unknown ones: one that does nothing is a misunderstanding.
"""

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bridge.node.router.link import CONTROL_PATHS, ControlAccess, Credentials, Link, Software
from bridge.node.security.key_files import read_password
from bridge.node.settings.choices import RouterKind
from bridge.node.settings.reader import Section
from gossip import Address
from gossip.node import is_private, numeric, parse_endpoint

if TYPE_CHECKING:
    from bridge.node.router.i2cp_router import I2cpRouterAccess

I2CP_PORT: Final = 7654
_DEFAULT_I2CP: Final = Address("127.0.0.1", I2CP_PORT)


@dataclass(frozen=True, slots=True, kw_only=True)
class I2cpSettings:
    """How a router of the kind `i2cp` is spoken to; `control` is its I2PControl."""

    software: Software
    link: Link
    username: str | None = None
    password_file: Path | None = None
    control: Link | None = None
    control_path: str = "/"
    control_password_file: Path | None = None

    def access(self) -> "I2cpRouterAccess":
        """With the passwords, read now; `KeyFileError` says which file cannot be used."""
        # A node without a router has no use for I2CP, which takes a megabyte.
        from bridge.node.router.i2cp_publishing import I2cpAccess  # noqa: PLC0415 - see above
        from bridge.node.router.i2cp_router import I2cpRouterAccess  # noqa: PLC0415 - see above

        credentials = None
        if self.username is not None and self.password_file is not None:
            credentials = Credentials(self.username, read_password(self.password_file))
        control = None
        if self.control is not None and self.control_password_file is not None:
            password = read_password(self.control_password_file)
            control = ControlAccess(self.control, self.software, password, self.control_path)
        return I2cpRouterAccess(I2cpAccess(self.link, self.software, credentials), control)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """`directory` is where a router of the kind `file` keeps what is published; `i2cp` is there for that kind."""

    directory: Path
    kind: RouterKind = RouterKind.FILE
    i2cp: I2cpSettings | None = None


def router_settings(section: Section, state_dir: Path, *, demo: bool) -> RouterSettings:
    """Read `[router]`."""
    kind = section.choice("kind", RouterKind)
    own_directory = state_dir.absolute() / "published"
    if kind is RouterKind.FILE:
        directory = section.path("directory")
        section.finish()
        return RouterSettings(kind=kind, directory=directory or own_directory)
    i2cp = _i2cp(section)
    section.finish()
    if demo:
        section.problem(
            "kind", '"i2cp" with demo = true: a demonstration\'s keys never reach a real router; use "file"'
        )
    return RouterSettings(kind=kind, directory=own_directory, i2cp=i2cp)


def _i2cp(section: Section) -> I2cpSettings:
    software = section.choice("software", Software)
    address = section.address("i2cp") or _DEFAULT_I2CP
    certificate = _file(section, "i2cp_certificate")
    username, password_file = section.text("i2cp_username"), section.path("i2cp_password_file")
    if (username is None) is not (password_file is None):
        section.problem("i2cp_username", "i2cp_username and i2cp_password_file belong together: give both or neither")
    if certificate is None and not is_private(address.host):
        section.problem(
            "i2cp",
            f"{address.host} is not a private address, and I2CP in plain shows any machine on the way which "
            "destination is published from where: use the router's private address, or TLS with i2cp_certificate",
        )
    control, path = _control(section, software)
    control_password_file = section.path("i2pcontrol_password_file")
    if (control is None) is not (control_password_file is None):
        section.problem("i2pcontrol", "i2pcontrol and i2pcontrol_password_file belong together: give both, or neither")
    return I2cpSettings(
        software=software,
        link=Link(address.host, address.port, certificate),
        username=username,
        password_file=password_file,
        control=control,
        control_path=path,
        control_password_file=control_password_file,
    )


def _file(section: Section, key: str) -> Path | None:
    found = section.path(key)
    if found is not None and not found.is_file():
        section.problem(key, f"{found} does not exist: copy the router's certificate (PEM) there")
        return None
    return found


def _control(section: Section, software: Software) -> tuple[Link | None, str]:
    told = section.text("i2pcontrol")
    certificate = _file(section, "i2pcontrol_certificate")
    if told is None:
        return None, "/"
    scheme, separator, rest = told.partition("://")
    place, slash, path = rest.partition("/")
    try:
        host, port = parse_endpoint(place)
    except ValueError:
        host, port = "", 0
    canonical = numeric(host)
    if scheme not in {"http", "https"} or not separator or canonical is None:
        section.problem(
            "i2pcontrol", f"{told[:60]!r} is not of the form https://127.0.0.1:7650, with a numeric address"
        )
        return None, "/"
    loopback = ip_address(canonical).is_loopback
    if scheme == "http" and not loopback:
        section.problem("i2pcontrol", "its password opens the whole router: in plain http it may go to loopback only")
    if scheme == "https" and not loopback and certificate is None:
        section.problem("i2pcontrol", "beyond this machine its certificate must be known: give i2pcontrol_certificate")
    unchecked = scheme == "https" and certificate is None
    default = CONTROL_PATHS[software]
    return Link(canonical, port, certificate if scheme == "https" else None, unchecked_tls=unchecked), (
        f"{slash}{path}" if path else default
    )
