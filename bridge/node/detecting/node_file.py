"""The node's configuration file: its content before the change, and its replacement.

    read ─▶ text, table, addresses of masters and leaves ─▶ changed text ─▶ replaced, with the same owner and mode

The replacement is atomic, and does not happen if the file was changed since it was read. A file that does not exist yet
is made.
"""

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from bridge.node.detecting.plan import CERTIFICATE_FILE, Plan, PlanError, settings_of
from bridge.node.settings.configuration import FILE_LIMIT_BYTES
from bridge.node.settings.places import CONFIGURATION_NAME, SYSTEM_CONFIGURATION_DIRECTORY, node_places
from bridge.node.settings.toml_editor import EditError, add_tables, set_table
from bridge.wire.i2p.destination_keys import DestinationKeyError, parse_signing_key
from bridge.wire.keys.text import KeyTextError
from consensus.storage import replace_file

PACKAGE_FILE: Final = SYSTEM_CONFIGURATION_DIRECTORY / CONFIGURATION_NAME
USER_FILE: Final = Path(".config/garlicfarm") / CONFIGURATION_NAME
"""The file below the home directory of a user."""
LOCAL_FILE: Final = Path(CONFIGURATION_NAME)
_NEW_MODE: Final = 0o640
_KEY_LIMIT_BYTES: Final = 65_536


class NodeFile(Struct, frozen=True):
    """The configuration file of a node as it was read."""

    path: Path
    text: str
    table: Mapping[str, Any]
    status: os.stat_result | None
    """Owner and mode; None if the file does not exist."""

    @property
    def directory(self) -> Path:
        """The directory that the file's relative paths start from."""
        return self.path.parent

    @property
    def leaves(self) -> frozenset[str]:
        """The destinations of its leaves."""
        found = self.table.get("leaf", [])
        tables = found if isinstance(found, list) else []
        return frozenset(str(each.get("destination")) for each in tables if isinstance(each, dict))

    @property
    def masters(self) -> frozenset[str]:
        """The destinations of its masters; a key file that this user cannot read is left out."""
        return frozenset(self._masters())

    def _masters(self) -> Iterator[str]:
        publishing, masters = self.table.get("publishing", {}), self.table.get("master", [])
        for each in (publishing, *(masters if isinstance(masters, list) else [])):
            if not isinstance(each, dict):
                continue
            if isinstance(each.get("destination"), str):
                yield each["destination"]
            if isinstance(each.get("signing_key"), str):
                # Root may read a key file of another user, but a node refuses such a file.
                with suppress(OSError, UnicodeDecodeError, DestinationKeyError, KeyTextError):
                    yield parse_signing_key(_head(self.directory / each["signing_key"])).destination.base64

    def changed(self, plan: Plan) -> str:
        """Return the text with the settings of a plan; raise PlanError if it cannot be changed, or would be wrong."""
        try:
            text = set_table(self.text, "router", plan.router, plan.absent)
            text = add_tables(text, "leaf", plan.leaves)
        except EditError as error:
            lines = [f"    {key} = {_shown(value)}" for key, value in plan.router.items()]
            wanted = "\n".join(["    [router]", *lines])
            raise PlanError(f"{self.path} stays as it is: {error}; add these values there:\n{wanted}") from None
        # A new certificate file is written just before the configuration.
        new = f"router.i2cp_certificate: {self.directory / CERTIFICATE_FILE} "
        found = settings_of(tomllib.loads(text), self.directory)[2]
        problems = [each for each in found if not each.startswith(new)]
        if problems:
            raise PlanError("\n".join(f"{self.path} stays as it is: {each}" for each in problems))
        return text

    def replace(self, text: str) -> None:
        """Replace the file; raise PlanError if it was changed since it was read, or OSError."""
        if read_node_file(self.path).text != self.text:
            raise PlanError(
                f"{self.path} has changed since this command read it, and stays as it is: run the command again"
            )
        mode = _NEW_MODE if self.status is None else self.status.st_mode & 0o7777
        if self.status is not None and self.status.st_uid != os.geteuid() != 0:
            raise PlanError(
                f"{self.path} belongs to user id {self.status.st_uid}: run the command as that user or root"
            )
        replace_file(self.path, text.encode(), mode, self.owner)

    @property
    def owner(self) -> tuple[int, int] | None:
        """User and group of the configuration, if root runs this: the node must be able to read new files."""
        return None if self.status is None or os.geteuid() != 0 else (self.status.st_uid, self.status.st_gid)


def _head(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_KEY_LIMIT_BYTES).decode()


def _shown(value: object) -> str:
    return f'"{value}"'


def default_node_file(homes: Iterable[Path]) -> Path | None:
    """Return the first existing configuration: this user's, the service's, another user's, or in this directory."""
    places = (node_places().configuration, PACKAGE_FILE, *(home / USER_FILE for home in homes), LOCAL_FILE)
    return next((each for each in places if os.path.isfile(each)), None)  # noqa: PTH113 - Path.is_file raises


def read_node_file(path: Path) -> NodeFile:
    """Read a configuration, and follow links to it; a missing file is empty. Raise PlanError or OSError."""
    real = Path(os.path.realpath(path))  # `resolve` raises RuntimeError for a link to itself.
    try:
        with real.open("rb") as file:
            content, status = file.read(FILE_LIMIT_BYTES + 1), os.fstat(file.fileno())
    except FileNotFoundError:
        return NodeFile(real, "", {}, None)
    if len(content) > FILE_LIMIT_BYTES:
        raise PlanError(f"{path} has more than {FILE_LIMIT_BYTES} bytes: is it the right file?")
    try:
        text = content.decode()
        return NodeFile(real, text, tomllib.loads(text), status)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise PlanError(f"{path} is not TOML: {error}") from None
