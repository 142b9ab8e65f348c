"""The farms that `garlicfarm top` watches together: addresses, or names of a small file.

    ~/.config/garlicfarm/farms.toml        ([NAME], nodes, token_files, certificates)
        [site-a]
        nodes = ["https://192.168.7.5:7650", "https://192.168.7.6:7650"]
        token_files = ["site-a-5.token", "site-a-6.token"]       one for all nodes, or one for each
        certificates = ["site-a-5.crt", "site-a-6.crt"]          the same
        [lab]
        nodes = ["/srv/lab/farm-state"]

Files are relative to the directory of the list. `--farm` takes a name of the list, or the address of a node as `--node`
does. Paths, tokens and certificates are read when `top` starts, so a mistake is reported before the screen changes.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from bridge.cli.node_queries import find_named_nodes, find_node, find_nodes
from bridge.node.control.client import ControlError
from bridge.node.control.connections.node_address import NodeAddress, is_remote
from bridge.node.control.connections.remote_node import remote_node
from bridge.node.security.local_trust import user_directory, with_home

FARMS_MAX: Final = 64
NODES_MAX: Final = 64
_LIST_LIMIT_BYTES: Final = 256 * 1024
Nodes = Callable[[], Sequence[NodeAddress]]
_Texts = Annotated[tuple[str, ...], Meta(max_length=NODES_MAX)]


class FarmListError(ControlError):
    """The list of farms, or a name of it, is unusable; the text contains the reason and the remedy."""


class ListedFarm(Struct, frozen=True, forbid_unknown_fields=True):
    """A farm of the list."""

    nodes: Annotated[tuple[str, ...], Meta(min_length=1, max_length=NODES_MAX)]
    """Addresses of its nodes: paths, or https://HOST:PORT."""
    token_files: _Texts = ()
    """Files with the tokens of the URLs: one for all, or one for each."""
    certificates: _Texts = ()
    """Files with the certificates of the URLs: one for all, or one for each."""


def default_list() -> Path:
    """Return the path of the user's list of farms."""
    return user_directory("XDG_CONFIG_HOME", ".config") / "farms.toml"


def decode_list(content: bytes) -> dict[str, ListedFarm]:
    """Return the farms of a list by name; raise `FarmListError`."""
    try:
        farms = msgspec.toml.decode(content, type=dict[str, ListedFarm])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FarmListError(f'{error}; a farm is [NAME] with nodes = ["ADDRESS", …]') from error
    if not 0 < len(farms) <= FARMS_MAX:
        raise FarmListError(f"{len(farms)} farms; write 1 to {FARMS_MAX} of them, each as [NAME] with nodes")
    return farms


def chosen_farms(named: Sequence[str], given_list: Path | None) -> dict[str, Nodes]:
    """Return the nodes of each farm: the named farms, or all farms of the list. Raise `ControlError`.

    Without `given_list`, a missing list is empty.
    """
    path = given_list or default_list()
    listed = {} if given_list is None and not path.exists() else _read(path)
    addresses = [each for each in named if each not in listed]
    urls = [each for each in addresses if is_remote(each)]
    remote = dict(zip(urls, find_named_nodes(urls), strict=True))
    for each in addresses:
        if each not in remote and "/" not in each and not Path(each).exists():
            known = f"{path} has {', '.join(listed)}" if listed else f"the list {path} does not exist"
            raise FarmListError(f"{each} is neither the name of a listed farm nor an address: {known}")
    return {
        name: _nodes_of(listed[name], path, name) if name in listed else partial(_found, remote, [name])
        for name in named or listed
    }


def _found(remote: Mapping[str, NodeAddress], addresses: Sequence[str]) -> tuple[NodeAddress, ...]:
    """Return the nodes at these addresses; raise the first `ControlError` if all fail."""
    found: list[NodeAddress] = []
    errors: list[ControlError] = []
    for each in addresses:
        try:
            found += [remote[each]] if each in remote else _nodes_at(each)
        except ControlError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    return tuple(dict.fromkeys(found))


def _nodes_at(path: str) -> Sequence[NodeAddress]:
    """Return the node of a socket or a state directory, or all nodes whose state directories are in the directory.

    Nodes next to a single state directory are left out: they may belong to another farm.
    """
    first = find_node(path)
    holds_nodes = isinstance(first, Path) and first.absolute().parent.parent == with_home(path).absolute()
    return find_nodes((path,)) if holds_nodes else (first,)


def _read(path: Path) -> dict[str, ListedFarm]:
    try:
        with path.open("rb") as file:
            content = file.read(_LIST_LIMIT_BYTES + 1)
    except OSError as error:
        raise FarmListError(f"{path} cannot be read: {error.strerror or error}; name farms with --farm") from error
    if len(content) > _LIST_LIMIT_BYTES:
        raise FarmListError(f"{path} is larger than {_LIST_LIMIT_BYTES} bytes: it is not a list of farms")
    try:
        return decode_list(content)
    except FarmListError as error:
        raise FarmListError(f"{path}: {error}") from error


def _nodes_of(farm: ListedFarm, path: Path, name: str) -> Nodes:
    """Return the function that finds the nodes of a listed farm, with their tokens and certificates."""
    urls = [each for each in farm.nodes if is_remote(each)]
    for key, files in (("token_files", farm.token_files), ("certificates", farm.certificates)):
        if len(files) not in (0, 1, len(urls)):
            raise FarmListError(
                f"{path}: {name}.{key} has {len(files)} files for {len(urls)} URLs: write one for all, or one for each"
            )
    try:
        remote = {
            url: remote_node(url, _file_at(farm.token_files, at, path), _file_at(farm.certificates, at, path))
            for at, url in enumerate(urls)
        }
        local = [each if each in remote else str(path.parent / with_home(each)) for each in farm.nodes]
    except ValueError as error:
        raise FarmListError(f"{path}: {name}: {error}") from error
    return partial(_found, remote, local)


def _file_at(files: Sequence[str], place: int, path: Path) -> Path | None:
    return path.parent / with_home(files[min(place, len(files) - 1)]) if files else None
