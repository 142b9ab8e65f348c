"""Writes the files of a new node. It never overwrites files, and checks the configuration before writing it.

    init     farm key (new)       configuration: places, name, address
    join     farm key (bundle)    the same, and the shared settings, seeds, masters and signing keys of the bundle

The package's configuration exists before its first start, with every setting as a comment. It is changed line by line,
so that its comments stay.

After a kill or Ctrl-C the operator repeats the same command. Until then, each file is complete or missing. A marker
with the name of the command is written before the last file, the farm key, and removed when the command ends. If marker
and farm key exist, a repeated command skips the files and continues. Only one command of a node runs at a time.
"""

import fcntl
import os
import socket
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bridge.cli.config import check_text
from bridge.cli.failure import fail, failures
from bridge.cli.options import replace_text
from bridge.cli.printing import echo
from bridge.node.membership.forming import FILE_NAME as FORMATION_FILE
from bridge.node.raft.storage_note import RAFT_DIRECTORY
from bridge.node.security.control_socket import SOCKET_NAME, answers
from bridge.node.security.key_files import save_farm_key, save_signing_key
from bridge.node.security.local_trust import facts_about_node, make_state_directory
from bridge.node.settings.bundle import BundleError, toml_text
from bridge.node.settings.configuration import ConfigurationError, NodeConfiguration
from bridge.node.settings.places import Places, has_service
from bridge.node.settings.toml_editor import EditError, add_tables, set_table
from bridge.wire.i2p.destination_keys import SigningKey
from bridge.wire.keys.farm_key import FarmKey
from consensus.storage import replace_file

MARKER: Final = ".unfinished"
_MODE: Final = 0o640
_MARKER_MODE: Final = 0o644


def is_continued(places: Places, command: str) -> bool:
    """Return True if an earlier run of this command has written the files; fail if there is another node."""
    state_dir = places.state_dir
    if not places.is_service and has_service():
        echo(f"This makes a node of this user; with `sudo`, {command} uses the service of the package.", err=True)
    if answers(state_dir / SOCKET_NAME):
        fail(f"a node runs here already, with the state directory {state_dir}: `garlicfarm status` shows its farm")
    found = [state_dir / FORMATION_FILE, state_dir / RAFT_DIRECTORY]
    if places.farm_key.exists() and _marker(places).exists() and _marker(places).read_text().strip() == command:
        _refuse(places, [each for each in found if os.path.lexists(each)])
        echo(f"An earlier run of {command} has written the files, and this run continues with them.", err=True)
        return True
    found.insert(0, places.farm_key)
    if not places.is_service and not _is_unfinished(places):
        found.insert(0, places.configuration)
    _refuse(places, [each for each in found if os.path.lexists(each)])
    return False


def _marker(places: Places) -> Path:
    return places.directory / MARKER


def interrupted_state(places: Places) -> str:
    """Return the state of the files after Ctrl-C, and the way to continue."""
    if not _marker(places).exists():
        return "this machine does not have a node yet. To start again, repeat the command."
    return f"{places.configuration} and {places.farm_key} are kept. To continue, repeat the command."


def end_command(places: Places) -> None:
    """Remove the marker: the node can start, and no command continues."""
    _marker(places).unlink(missing_ok=True)


def _refuse(places: Places, existing: Sequence[Path]) -> None:
    if existing:
        start = "sudo systemctl enable --now garlicfarm" if places.is_service else "garlicfarm run"
        fail(
            f"this machine has a node already, and nothing is overwritten: {', '.join(map(str, existing))}\n"
            f"To start that node: {start}\n"
            "To invite another machine into its farm: garlicfarm invite new\n"
            "For a new node here: move these files away first; its old farm then loses this node"
        )


def _is_unfinished(places: Places) -> bool:
    """Return True if an earlier `init` or `join` was killed after it wrote the configuration, before the farm key."""
    try:
        table = tomllib.loads(places.configuration.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError):
        return False
    written = table.get("farm_key"), table.get("state_dir")
    return written == (places.farm_key.name, str(places.state_dir.absolute())) and not places.farm_key.exists()


@contextmanager
def only_run(places: Places) -> Iterator[None]:
    """Make the directory of the configuration, and exclude other runs of `init` and `join` during the block."""
    with failures(OSError):
        places.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(places.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fail(f"another run of init or join makes the node of {places.directory}: wait for its end, or end it")
        except OSError:
            pass  # Some file systems do not lock directories; then other runs are not excluded.
        yield
    finally:
        os.close(descriptor)


def make_state(places: Places) -> None:
    """Make the state directory; raise UntrustedPathError and OSError."""
    make_state_directory(places.state_dir, facts_about_node(places.state_dir / SOCKET_NAME, places.state_dir))


def configuration_text(places: Places, settings: Mapping[str, Any]) -> str:
    """Return the text of the configuration with these settings; raise ConfigurationError."""
    own: dict[str, Any] = {"farm_key": places.farm_key.name, **settings}
    if not places.is_service or not places.configuration.exists():
        return toml_text({**own, "state_dir": str(places.state_dir.absolute())})
    try:
        text = places.configuration.read_text(encoding="utf-8")
        known = tomllib.loads(text)
        for table, values in settings.items():
            text = _with_setting(text, known, table, values)
    except (EditError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{places.configuration} stays as it is: {error}") from None
    return text


def _with_setting(text: str, known: Mapping[str, Any], table: str, values: Any) -> str:
    match values:
        case _ if known.get(table) == values:
            return text  # For example, an earlier attempt wrote it.
        case Mapping():
            return set_table(text, table, values)
        case list():
            return add_tables(text, table, values)
        case _ if table in known:
            raise EditError(f"it sets {table} to another value: remove that line")
        case value:
            return f"{toml_text({table: value})}{text}"


def own_settings(name: str | None, bind: str | None) -> dict[str, Any]:
    """Return the settings of the command line."""
    named = {} if name is None else {"name": name}
    return named if bind is None else {**named, "gossip": {"bind": bind}}


def check_own_settings(places: Places, settings: Mapping[str, Any]) -> None:
    """Raise errors of the configuration and of files before a command uses up a token.

    The bundle may permit addresses of the internet; `write_files` checks the settings together with the bundle.
    """
    permitted = merged(settings, {"gossip": {"allow_wan": True}}) if "gossip" in settings else settings
    _check_address(check_text(places.configuration, configuration_text(places, permitted)))


def merged(own: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of both; this node's settings have precedence."""
    made = dict(shared)
    for key, value in own.items():
        made[key] = {**made.get(key, {}), **value} if isinstance(value, Mapping) else value
    return made


def with_signing_keys(
    directory: Path, settings: Mapping[str, Any], keys: Sequence[SigningKey]
) -> tuple[dict[str, Any], dict[Path, SigningKey]]:
    """Return the settings with the file of each key in place of its master's destination, and the files."""
    made, files = {**settings, "master": [dict(each) for each in settings.get("master", [])]}, dict[Path, SigningKey]()
    for key in keys:
        master = next((each for each in made["master"] if each.get("destination") == key.destination.base64), None)
        if master is None:
            raise BundleError(f"a signing key of {key.destination.address}, which is not a master of the bundle")
        path = directory / f"{key.destination.address[:8]}.key"
        del master["destination"]
        master["signing_key"] = path.name
        files[path] = key
    if not made["master"]:
        del made["master"]
    return made, files


def write_files(
    places: Places, command: str, farm_key: FarmKey, text: str, signing_keys: Mapping[Path, SigningKey]
) -> None:
    """Write all files, the farm key last: without it the unit does not start. Raise errors of the files.

    The same files may exist already: after a kill the command is repeated.
    """
    _check_address(check_text(places.configuration, text))
    exists = os.path.lexists(places.configuration)
    if exists and not places.is_service and places.configuration.read_text(encoding="utf-8") != text:
        _refuse(places, [places.configuration])
    for path, key in signing_keys.items():
        save_signing_key(path, key, again=True)
    replace_configuration(places.configuration, text)
    replace_file(_marker(places), f"{command}\n".encode(), _MARKER_MODE)
    save_farm_key(places.farm_key, farm_key)


def _check_address(configuration: NodeConfiguration) -> None:
    """Raise ConfigurationError if no interface of this machine has the address of gossip."""
    if configuration.gossip is None:
        return
    host = configuration.gossip.bind.host
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            raise ConfigurationError(
                f"gossip cannot use {host}: {error.strerror}; give an address of this machine (`ip address` lists them)"
                " with --bind HOST:PORT"
            ) from None


def replace_configuration(path: Path, text: str) -> None:
    """Replace a configuration, with its owner and mode, or make it. Raise OSError."""
    replace_text(path, text, _MODE)
