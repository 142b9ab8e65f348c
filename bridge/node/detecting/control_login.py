"""The login to a found router's I2PControl: the first password that it accepts.

    file named in the configuration ─▶ i2pcontrol.password next to it ─▶ the router's own configuration ─▶ itoopie

i2pd's configuration contains the password; a Java router stores only its hash. An operator with another password writes
it into the file `i2pcontrol.password`.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import trio
from msgspec import Struct

from bridge.node.detecting.found import DEFAULT_PASSWORD, FoundRouter
from bridge.node.router.i2pcontrol import I2PControl
from bridge.node.router.link import CONTROL_PATHS, ControlAccess, Link, RouterLost
from bridge.node.security.key_files import PASSWORD_LIMIT_BYTES

PASSWORD_FILE: Final = "i2pcontrol.password"  # noqa: S105 - the name of a file
_LOGIN_TIMEOUT_S: Final = 15.0


class Login(Struct, frozen=True):
    """An accepted password, and its `file` as in the configuration; `is_new`: the file lacks the password."""

    password: str
    file: str
    is_new: bool

    def __repr__(self) -> str:
        return f"Login({self.file!r}, is_new={self.is_new})"


def find_login(router: FoundRouter, table: Mapping[str, Any], directory: Path) -> Login | str:
    """Return the first login that the router accepts, or the reason of the first failure."""
    reason = ""
    tried: set[str] = set()
    for login in _candidates(router, table, directory):
        if login.password in tried:
            continue
        tried.add(login.password)
        refusal = trio.run(_refusal, router, login.password)
        if refusal is None:
            return login
        reason = reason or refusal
    return reason or "no password is known"


def _candidates(router: FoundRouter, table: Mapping[str, Any], directory: Path) -> Iterator[Login]:
    section = table.get("router")
    named = section.get("i2pcontrol_password_file") if isinstance(section, dict) else None
    for file in dict.fromkeys(each for each in (named, PASSWORD_FILE) if isinstance(each, str) and each):
        with suppress(OSError), (directory / file).open("rb") as opened:
            # Root may read the password file of another user, but a node refuses such a file.
            text = opened.read(PASSWORD_LIMIT_BYTES).decode("utf-8", "replace")
            yield Login(text.removesuffix("\n").removesuffix("\r"), file, is_new=False)
    for known in (router.password, DEFAULT_PASSWORD):
        if known:
            yield Login(known, PASSWORD_FILE, is_new=True)


async def _refusal(router: FoundRouter, password: str) -> str | None:
    """Return the reason why the router refuses a password; None if it accepts it."""
    service = router.i2pcontrol
    link = Link(service.link.host, service.link.port, unchecked_tls=service.is_encrypted)
    access = ControlAccess(link, router.software, password, CONTROL_PATHS[router.software])
    try:
        with trio.fail_after(_LOGIN_TIMEOUT_S):
            await I2PControl(access).facts()
    except RouterLost as error:
        return str(error)
    except trio.TooSlowError:
        return f"I2PControl at {link} did not answer within {_LOGIN_TIMEOUT_S:g} s"
    return None
