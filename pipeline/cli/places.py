"""The places of a log, and the options of a command that choose one.

    --node ADDRESS …     Nodes       the control endpoints of nodes that run; the default: all below ./farm-state
    --directory DIR      Directory   a state directory, whose node need not run
    --farms FILE         Farms       several farms, whose options are in the file
    --kafka HOST:PORT    Topic       the farm's topic, by Spark's own connector

A place has only its own options: one function (`place_of`) checks the command line, and refuses options of two places.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, TypeAlias

import click

from bridge.cli.options import IntegerRange
from pipeline.feedback.client_key import ClientKeyError
from pipeline.feedback.farms import FarmsFile, NodesReach, Reaches
from pipeline.source.endpoint import CONTROL_SOCKET, TCP_SCHEME, CredentialError, load_credentials
from pipeline.source.farm import DEFAULT_PAGE_SIZE
from pipeline.source.farms import OLDEST, FarmNodes, ManyFarms
from pipeline.source.kafka import MOST_OFFSETS, SERVERS, TOPIC_OPTION, connector
from pipeline.source.log_client import FarmLog, FarmLogError, first_without_gap
from pipeline.source.stored_log import StoredLog

Notify: TypeAlias = Callable[[str], None]


class _Place:
    """A place that Spark reads without packages of Maven."""

    __slots__ = ()

    def packages(self) -> tuple[str, ...]:
        """Return the Maven coordinates that Spark needs in addition to PySpark."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes(_Place):
    """Running nodes of one farm: the first to reply is read, and factors can be submitted to it."""

    nodes: tuple[str, ...] = ()
    """Empty: every node below ./farm-state."""
    token_file: Path | None = None
    certificate: Path | None = None

    def options(self) -> dict[str, str]:
        """Return the options of the source `farm`. Raise FarmLogError if no node replies."""
        addresses, credentials = self._reached()
        FarmLog(addresses, credentials).status()
        found = {"node": ",".join(addresses)}
        if self.token_file is not None:
            found["tokenFile"] = str(self.token_file.resolve())
        if self.certificate is not None:
            found["certificate"] = str(self.certificate.resolve())
        return found

    def refuse_outside(self, first: int, last: int) -> None:
        """Raise FarmLogError if the log does not have all entries from `first` to `last`."""
        found = FarmLog(*self._reached()).statuses()
        _refuse_outside(first, last, first_without_gap(found), max(status.commit_index for status in found))

    def reaches(self, client_key: Path | None, notify: Notify) -> Reaches:
        """Return the access for submissions. Raise FarmLogError if no node replies."""
        addresses, credentials = self._reached()
        cluster = FarmLog(addresses, credentials).status().cluster
        found = NodesReach(FarmNodes(addresses, self.token_file, self.certificate, client_key), cluster, notify)
        try:
            found.load()
        except (CredentialError, ClientKeyError) as error:
            raise FarmLogError(str(error)) from error
        return found

    def _reached(self) -> tuple[tuple[str, ...], Any]:
        try:
            return self._addresses(), load_credentials(self.token_file, self.certificate)
        except CredentialError as error:
            raise FarmLogError(str(error)) from error

    def _addresses(self) -> tuple[str, ...]:
        if self.nodes:
            return tuple(map(_address, self.nodes))
        found = sorted(Path("farm-state").glob(f"*/{CONTROL_SOCKET}"))
        if not found:
            raise FarmLogError(
                "no farm found below ./farm-state; start one (`garlicfarm up --nodes 3`)"
                " or name a node's control socket with --node",
            )
        return tuple(map(os.path.realpath, found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory(_Place):
    """The state directory of a node, or a copy of one."""

    path: Path
    committed_through: int | None = None

    def options(self) -> dict[str, str]:
        """Return the options of the source `farm`. Raise FarmLogError if the commit index is unknown."""
        first, committed = StoredLog(self.path, self.committed_through).bounds()
        if committed < first - 1 or not committed:
            raise FarmLogError(
                f"the commit index of the log in {self.path} is unknown: a node writes it to committed.json, every"
                " half minute and when it stops. Wait for that; or, if the file is lost and the farm was stopped"
                " cleanly, give the last entry with --committed-through (`garlicfarm log verify` shows it)",
            )
        found = {"directory": str(self.path.resolve())}
        if self.committed_through is not None:
            found["committedThrough"] = str(self.committed_through)
        return found

    def refuse_outside(self, first: int, last: int) -> None:
        """Raise FarmLogError if the log does not have all entries from `first` to `last`."""
        _refuse_outside(first, last, *StoredLog(self.path, self.committed_through).bounds())

    def reaches(self, _client_key: Path | None, _notify: Notify) -> Reaches:
        """Raise FarmLogError, since factors can only be submitted to a running node."""
        raise FarmLogError("--submit needs a farm that runs: a --directory is read only")


@dataclass(frozen=True, slots=True, kw_only=True)
class Farms(_Place):
    """The farms in a file."""

    file: Path

    def options(self) -> dict[str, str]:
        """Return the options of the source `farm`. Raise FarmLogError if the file cannot be used."""
        ManyFarms(self.file, DEFAULT_PAGE_SIZE)
        return {"farms": str(self.file.resolve()), "start": OLDEST}

    def refuse_outside(self, _first: int, _last: int) -> None:
        """Raise FarmLogError, since only the log of one farm has parts."""
        raise FarmLogError(
            "a part of a log belongs to one farm: name the farm with --node or --directory, not with --farms"
        )

    def reaches(self, client_key: Path | None, notify: Notify) -> Reaches:
        """Return the access for submissions to each farm in the file."""
        if client_key is not None:
            raise FarmLogError(f"--client-key belongs to one farm: set `client_key` of each farm in {self.file}")
        return FarmsFile(self.file, notify)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """The farm's topic at a Kafka listener."""

    servers: str
    settings: tuple[tuple[str, str], ...] = ()

    def packages(self) -> tuple[str, ...]:
        """Return the Maven coordinates of Spark's connector."""
        return (connector(),)

    def options(self) -> dict[str, str]:
        """Return the options of Spark's connector; it ignores their case, and this package does not."""
        own = {each.lower(): each for each in (TOPIC_OPTION, MOST_OFFSETS)}
        settings = ((re.sub("(?i)^kafka[.]", "kafka.", name), value) for name, value in self.settings)
        return {SERVERS: self.servers, **{own.get(name.lower(), name): value for name, value in settings}}

    def refuse_outside(self, _first: int, _last: int) -> None:
        """Raise FarmLogError, since a topic has offsets, not indexes."""
        raise FarmLogError("a part of a log is read with --node or --directory, not with --kafka")

    def reaches(self, _client_key: Path | None, _notify: Notify) -> Reaches:
        """Raise FarmLogError, since a listener does not accept factors."""
        raise FarmLogError("--submit needs a control endpoint: read with --node, not with --kafka")


LogPlace: TypeAlias = Nodes | Directory | Farms | Topic
_OWNERS = {
    "--token-file": "--node",
    "--certificate": "--node",
    "--committed-through": "--directory",
    "--kafka-option": "--kafka",
}
"""The place that each option belongs to."""


def place_of(
    *,
    nodes: tuple[str, ...],
    directory: Path | None,
    token_file: Path | None,
    certificate: Path | None,
    committed_through: int | None,
    farms: Path | None,
    kafka: str | None,
    kafka_settings: tuple[tuple[str, str], ...],
) -> LogPlace:
    """Return the place of these options; raise click.UsageError for options of two places."""
    places = {"--node": nodes, "--directory": directory, "--farms": farms, "--kafka": kafka}
    chosen = [name for name, value in places.items() if value]
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(chosen)} are different places: choose one")
    place = chosen[0] if chosen else "--node"
    values = (token_file, certificate, committed_through, kafka_settings)
    for (option, owner), value in zip(_OWNERS.items(), values, strict=True):
        if value and owner != place:
            where = f"; set the options of each farm in {farms}" if farms is not None else ""
            raise click.UsageError(f"{option} belongs to {owner}, and the log is read with {place}{where}")
    if directory is not None:
        return Directory(path=directory, committed_through=committed_through)
    if farms is not None:
        return Farms(file=farms)
    if kafka is not None:
        return Topic(servers=kafka, settings=kafka_settings)
    return Nodes(nodes=nodes, token_file=token_file, certificate=certificate)


def traces_of(source: dict[str, str], files: str | None) -> dict[str, str] | None:
    """Return the options of `farm_events`: files, or the nodes in the options of `farm`; None for a directory."""
    if files is not None:
        # Absolute paths: the checkpoint identifies files by them, regardless of the next run's working directory.
        return {"files": ",".join(str(Path(part.strip()).absolute()) for part in files.split(",") if part.strip())}
    if "node" not in source:
        return None
    return {name: source[name] for name in ("node", "tokenFile", "certificate") if name in source}


def _refuse_outside(first: int, last: int, oldest: int, newest: int) -> None:
    if last > newest:
        raise FarmLogError(
            f"--to is {last}, but the log is known to be committed only up to {newest}; choose an earlier --to, or wait"
        )
    if first < oldest:
        raise FarmLogError(
            f"--from is {first}, but the oldest remaining entry is {oldest}; choose a later --from, or read an older"
            " copy of a state directory (--directory)"
        )


def _address(node: str) -> str:
    # `resolve` raises RuntimeError for a link to itself.
    return node if node.startswith(f"{TCP_SCHEME}://") else os.path.realpath(node)


def _options_of_kafka(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Check the form of `--kafka-option` before a JVM is started."""
    found = [value.partition("=") for value in values]
    for name, is_one, _value in found:
        if not is_one or not name:
            raise click.BadParameter(f"{name!r} is not an option of Spark's connector: write NAME=VALUE.")
        if name.lower() == "failondataloss":
            raise click.BadParameter(f"{name} is not supported: a run must stop if the topic has lost records.")
    return tuple((name, value) for name, _is, value in found)


def place_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for the place of the log; the command gets them as `place`."""

    @click.option(
        "--node",
        "nodes",
        multiple=True,
        metavar="ADDRESS",
        help="A node's control socket, its state directory, or https://HOST:PORT; may be given several times: the"
        " first that replies is read. Default: every node below ./farm-state.",
    )
    @click.option(
        "--directory",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        help="Read the log in this state directory (or a copy of one) instead; its node need not run.",
    )
    @click.option(
        "--token-file",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="For https: the node's control.read.token; to submit factors as well, its control.admin.token.",
    )
    @click.option(
        "--certificate",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="For https: the control.crt of all nodes, concatenated in one file.",
    )
    @click.option(
        "--committed-through",
        type=IntegerRange(min=1),
        metavar="INDEX",
        help="With --directory: entries up to INDEX are committed; needed if the node's committed.json is lost.",
    )
    @click.option(
        "--farms",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="A TOML or JSON file of several farms for the same tables. The run reads it again when it changes, so you"
        " can add and remove farms.",
    )
    @click.option(
        "--kafka",
        metavar="HOST:PORT,…",
        help="Read the farm's Kafka topic instead, with Spark's own connector. Spark fetches the connector once from"
        " Maven's repository.",
    )
    @click.option(
        "--kafka-option",
        "kafka_settings",
        multiple=True,
        metavar="NAME=VALUE",
        callback=_options_of_kafka,
        help="With --kafka: an option of the connector, such as subscribe=TOPIC or"
        " kafka.security.protocol=SASL_SSL; may be given several times.",
    )
    @wraps(command)
    def taking(**given: Any) -> None:
        place = place_of(**{name: given.pop(name) for name in signature(place_of).parameters})
        command(place=place, **given)

    return taking
