"""The farms of a stream, and the current range of each log.

    farms.toml                                            option `farms`; JSON of the same shape if it ends in `.json`

        [farms.blog]                                      a name that tables and messages use
        nodes = ["https://10.0.0.1:7650", "https://10.0.0.2:7650"]     the first to reply is read
        token_file = "blog.token"                         paths are relative to this file
        certificate = "blog.pem"
        client_key = "blog.key"                           signs the factors submitted to it (`--submit`)

        [farms.shop]
        directory = "/srv/copies/shop"                    a state directory, or a copy of one

The file is read again when it changes: farms join and leave while the stream runs. An unreadable change is reported,
and the farms stay unchanged.

*An unreachable farm does not delay the others.* Threads query all farms concurrently, and continue when the wait for
replies ends. A farm without a reply after a second is skipped in this batch. After its reply it is queried again with
the other farms. After a failure it is queried again after a pause, which doubles with each failure in a row. The
progress of the Spark query reports each farm's problem.
"""

import json
import time
import tomllib
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from consensus.net.backoff import Backoff
from pipeline.source import log_client
from pipeline.source.daemon_pool import DaemonPool
from pipeline.source.endpoint import CredentialError, Credentials, load_credentials
from pipeline.source.log_client import COMPACTED, FarmLogError, FarmRefusedError, FarmSilentError, LogStatus, shortened
from pipeline.source.ranges import DirectoryRanges, LogRanges, NodeRanges
from pipeline.source.stored_log import KnownTime

PATIENCE_SECONDS = 1.0
FIRST_PATIENCE_SECONDS = 10.0
"""The limit of the wait for replies while no farm has ever replied: this wait does not delay a batch."""
UNANSWERED_SECONDS = 5.0
"""A farm without a reply for this time is reported as unresponsive: a busy machine delays many replies."""
QUERIES_AT_ONCE = 32
UNLISTED_MAX = 1_000
"""The limit of recorded names that have left the file."""
AGAIN_SECONDS, AGAIN_MAX_SECONDS = 2.0, 60.0
OLDEST, SNAPSHOT = "oldest", "snapshot"
_Load = Callable[[Path | None, Path | None], Credentials]


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one farm, and the first entry to read: `oldest`, `snapshot` or an index."""

    name: str | None
    ranges: LogRanges
    start: str = OLDEST


@dataclass(frozen=True, slots=True)
class SelectedLog:
    """A farm's current log. `begin` is its first selected entry, `covered` the index of its snapshot."""

    place: Place
    status: LogStatus
    begin: int
    covered: int | None = None


class _FarmInFile(Struct, forbid_unknown_fields=True):
    nodes: list[str] = []
    directory: str | None = None
    token_file: str | None = None
    certificate: str | None = None
    client_key: str | None = None
    committed_through: int | None = None
    start: str = OLDEST


@dataclass(frozen=True, slots=True)
class FarmNodes:
    """The nodes of one farm of a file, and the files for access to them."""

    addresses: tuple[str, ...]
    token_file: Path | None = None
    certificate: Path | None = None
    client_key: Path | None = None

    def options(self) -> dict[str, str]:
        """Return the options of the source `farm` that read this farm alone."""
        files = {"tokenFile": self.token_file, "certificate": self.certificate}
        return {"node": ",".join(self.addresses), **{name: str(file) for name, file in files.items() if file}}


class _File(Struct, forbid_unknown_fields=True):
    farms: dict[str, _FarmInFile]


def _read_farms(path: Path) -> dict[str, _FarmInFile]:
    """Return the farms of a file. Raise FarmLogError with the fault of the file."""
    try:
        with path.open("rb") as file:
            content = json.load(file) if path.suffix == ".json" else tomllib.load(file)
        parsed = msgspec.convert(content, _File)
    except msgspec.ValidationError as error:
        raise FarmLogError(
            f"the farms of {path} cannot be read: {error}; each farm is a table [farms.NAME] with nodes or a directory"
        ) from error
    except (OSError, ValueError) as error:
        raise FarmLogError(f"the farms of {path} cannot be read: {error}") from error
    if not parsed.farms:
        raise FarmLogError(f"{path} does not name a farm: it needs a table [farms.NAME] for each farm")
    return parsed.farms


def version_of(path: Path) -> tuple[int, ...]:
    """Return numbers that differ after a change of the file, even if a copy with the source's times has replaced it.

    Raise FarmLogError.
    """
    try:
        now = path.stat()
    except OSError as error:
        raise FarmLogError(f"{path} cannot be read: {error}") from error
    return now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns


def nodes_of_farms(path: Path) -> dict[str, FarmNodes | None]:
    """Return the nodes of each farm in the file, by name; None for a directory. Raise FarmLogError."""
    return {name: _nodes(farm, path) if farm.nodes else None for name, farm in _read_farms(path).items()}


def _nodes(farm: _FarmInFile, path: Path) -> FarmNodes:
    beside = path.absolute().parent
    files = (None if each is None else beside / each for each in (farm.token_file, farm.certificate, farm.client_key))
    return FarmNodes(tuple(each if "://" in each else str(beside / each) for each in farm.nodes), *files)


def _place(name: str, farm: _FarmInFile, path: Path, page_size: int, load: _Load) -> Place:
    if bool(farm.nodes) == bool(farm.directory):
        raise FarmLogError(f"farms.{name} in {path} needs either `nodes`, a list of control endpoints, or `directory`")
    is_index = farm.start.isascii() and farm.start.isdecimal() and int(farm.start) > 0
    if farm.start not in {OLDEST, SNAPSHOT} and not is_index:
        raise FarmLogError(f"farms.{name} in {path} has the start {farm.start!r}: use oldest, snapshot or an index")
    if farm.directory is not None and farm.client_key is not None:
        raise FarmLogError(
            f"farms.{name} in {path} has a client_key, but a directory does not accept factors: leave it out"
        )
    if farm.directory is not None:
        directory = path.absolute().parent / farm.directory
        return Place(name, DirectoryRanges(directory, farm.committed_through), farm.start)
    nodes = _nodes(farm, path)
    try:
        credentials = load(nodes.token_file, nodes.certificate)
    except CredentialError as error:
        raise FarmLogError(f"farms.{name} in {path}: {error}") from error
    return Place(name, NodeRanges(nodes.addresses, credentials, page_size), farm.start)


@dataclass(frozen=True, slots=True)
class Unread:
    """The names of farms whose state is not known yet."""

    waiting: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()


@dataclass(slots=True)
class _FarmState:
    """The query state of one farm."""

    settings: _FarmInFile
    place: Place
    first_log: SelectedLog | None = None
    question: "Future[SelectedLog] | None" = None
    requested_at_s: float = 0.0
    backoff: Backoff | None = None
    """The pauses after failures; None after a reply, since most farms reply."""
    due_s: float = 0.0
    problem: str = ""
    is_refused: bool = False

    def fail(self, error: Exception) -> None:
        """Record the problem, and pause."""
        self.is_refused = isinstance(error, FarmRefusedError)
        self.backoff = self.backoff or Backoff(AGAIN_SECONDS, AGAIN_MAX_SECONDS)
        self.due_s = time.monotonic() + self.backoff.next_s()
        is_refusal = isinstance(error, FarmLogError)
        self.problem = str(error) if is_refusal else f"cannot be queried, because of a fault of the pipeline: {error!r}"


class StreamFarms(Protocol):
    """The farms of a stream."""

    @property
    def problems(self) -> Mapping[str, str]:
        """The problem of each farm, by name."""

    @property
    def unread(self) -> Unread:
        """The farms without a known state."""

    def poll(self, next_entries: Mapping[str, int], *, thorough: bool) -> dict[str, SelectedLog]:
        """Return the logs of the farms that reply soon, by cluster id; `thorough`: of all farms."""

    def removed_clusters(self, clusters: Collection[str]) -> frozenset[str]:
        """Return the clusters that are not read any more."""

    def places(self, clusters: frozenset[str]) -> dict[str, Place]:
        """Return the places of these clusters."""

    def check_range(self, log: SelectedLog, first: int, end: int, known: KnownTime | None) -> bool:
        """Check the entries of a batch before its plan; record the problem of a farm that would block other farms.

        Return False for such a farm.
        """


class OneFarm:
    """The only farm of a run, given by its options. An error of this farm ends the reading.

    `load`: returns its place with the present credentials, which are read again after a refusal.
    """

    def __init__(self, place: Place, load: Callable[[], Place] | None = None) -> None:
        self._place = place
        self._load = load
        self._first_log: SelectedLog | None = None

    @property
    def problems(self) -> Mapping[str, str]:
        """Always empty: errors are raised instead."""
        return {}

    @property
    def unread(self) -> Unread:
        """Always empty: errors are raised instead."""
        return Unread()

    def poll(self, next_entries: Mapping[str, int], *, thorough: bool) -> dict[str, SelectedLog]:
        """Return its log, by its cluster id. `next_entries`: the cluster read before, and its next entry.

        Raises FarmLogError.
        """
        if len(next_entries) > 1:
            raise FarmLogError(f"the tables contain {len(next_entries)} farms: name them all with --farms")
        cluster = next(iter(next_entries), None)
        try:
            if self._first_log is None:
                log = self._first_log = _poll_first(self._place, cluster, next_entries, of_all=thorough)
            else:
                log = _poll_again(replace(self._first_log, place=self._place), next_entries, of_all=thorough)
        except FarmRefusedError:
            # An operator may have corrected the files.
            with suppress(FarmLogError):
                self._place = self._place if self._load is None else self._load()
            raise
        return {log.status.cluster: log}

    def removed_clusters(self, clusters: Collection[str]) -> frozenset[str]:
        """Return an empty set."""
        del clusters
        return frozenset()

    def places(self, clusters: frozenset[str]) -> dict[str, Place]:
        """Return this place for all clusters. A place refuses to be read as another cluster."""
        return dict.fromkeys(clusters, self._place)

    def check_range(self, log: SelectedLog, first: int, end: int, known: KnownTime | None) -> bool:
        """Return True: the reader of the entries reports damage."""
        del log, first, end, known
        return True


class ManyFarms:
    """The farms of a file.

    An error of one is reported, and the others are read. The constructor raises FarmLogError.
    """

    def __init__(self, path: Path, page_size: int) -> None:
        self._path = path
        self._page_size = page_size
        self._changed: tuple[int, ...] = ()
        self._farms: dict[str, _FarmState] = {}
        self._pool = DaemonPool(QUERIES_AT_ONCE)
        self._of_file = ""
        self._unlisted: list[str] = []
        self._read_again()
        if self._of_file:
            raise FarmLogError(self._of_file)

    @property
    def problems(self) -> Mapping[str, str]:
        """The problem of each farm, by name, and of the file itself."""
        found = {name: each.problem for name, each in self._farms.items() if each.problem}
        return {str(self._path): self._of_file, **found} if self._of_file else found

    @property
    def unread(self) -> Unread:
        """The farms without a log or a problem: they have not replied yet, or are not listed any more."""
        waiting = [name for name, each in self._farms.items() if each.first_log is None and not each.problem]
        return Unread(waiting=tuple(waiting), unlisted=tuple(self._unlisted))

    def poll(self, next_entries: Mapping[str, int], *, thorough: bool) -> dict[str, SelectedLog]:
        """Return the logs of the farms that reply soon, by cluster id; `thorough`: of all farms.

        `next_entries`: the next entry of each farm that was read.
        """
        self._read_again()
        now_s = time.monotonic()
        for name, each in self._farms.items():
            if each.question is None and (each.due_s <= now_s or thorough):
                if each.is_refused:
                    self._load_again(name, each)
                each.requested_at_s = now_s
                each.question = self._pool.submit(
                    partial(_poll, each.place, each.first_log, next_entries, of_all=thorough)
                )
        waiting = [each.question for each in self._farms.values() if each.question is not None]
        is_first = all(each.first_log is None for each in self._farms.values())
        timeout_s = FIRST_PATIENCE_SECONDS if is_first else PATIENCE_SECONDS
        wait(waiting, None if thorough else timeout_s)
        found: dict[str, SelectedLog] = {}
        for name, each in self._farms.items():
            log = _answer(each)
            if log is not None and log.status.cluster in found:
                other = found[log.status.cluster].place.name
                each.problem = f"{name} and {other} are one farm, the cluster {log.status.cluster}: name it once"
            elif log is not None:
                found[log.status.cluster] = log
        return found

    def removed_clusters(self, clusters: Collection[str]) -> frozenset[str]:
        """Return the clusters that left the file; none while a farm in it has not reported its cluster."""
        known = {each.first_log.status.cluster for each in self._farms.values() if each.first_log is not None}
        is_known = all(each.first_log is not None for each in self._farms.values())
        return frozenset(clusters) - known if is_known else frozenset()

    def places(self, clusters: frozenset[str]) -> dict[str, Place]:
        """Return the places of these clusters. Raise FarmSilentError when one of them has not replied for long."""
        until_s = time.monotonic() + log_client.SILENCE_SECONDS
        while True:
            first_logs = (each.first_log for each in self._farms.values())
            # If two names belong to the same farm, only the first is used.
            found = {each.status.cluster: each.place for each in reversed([*first_logs]) if each is not None}
            missing = clusters - found.keys()
            if not missing:
                return found
            if time.monotonic() > until_s:
                text = "; ".join(shortened([f"{name}: {problem}" for name, problem in self.problems.items()]))
                raise FarmSilentError(
                    "an interrupted batch must be read again, and no node of"
                    f" {', '.join(shortened(sorted(missing)))}, a farm of the batch, answers ({text}): start that farm,"
                    f" or name it in {self._path} again"
                )
            self.poll({}, thorough=False)

    def check_range(self, log: SelectedLog, first: int, end: int, known: KnownTime | None) -> bool:
        """Check the range of a directory; query a directory with damaged entries again after a pause, and return False.

        A planned batch is repeated until it succeeds, so a damaged directory would block all farms.
        """
        ranges = log.place.ranges
        try:
            if isinstance(ranges, DirectoryRanges) and first < end:
                ranges.check(first, end)
                ranges.time_before(end, known)  # It reads the snapshot, which may be damaged.
        except FarmLogError as error:
            for each in self._farms.values():
                if each.place is log.place:
                    each.fail(error)
            return False
        return True

    def _load_again(self, name: str, each: _FarmState) -> None:
        """Read the files of a refused farm again: an operator may have corrected them."""
        with suppress(FarmLogError):
            each.place = _place(name, each.settings, self._path, self._page_size, load_credentials)
            if each.first_log is not None:
                each.first_log = replace(each.first_log, place=each.place)

    def _read_again(self) -> None:
        """Read the file if it has changed."""
        try:
            changed = version_of(self._path)
            if changed == self._changed:
                return
            farms = _read_farms(self._path)
            # Farms with the same files share the credentials, which are read once.
            load = cache(load_credentials)
            known = {name: each for name, each in self._farms.items() if farms.get(name) == each.settings}
            new = {
                name: _FarmState(farm, _place(name, farm, self._path, self._page_size, load))
                for name, farm in farms.items()
                if name not in known
            }
        except FarmLogError as error:
            self._of_file = str(error)
            return
        lost = [
            name for name, each in self._farms.items() if name not in farms and (each.problem or each.first_log is None)
        ]
        unlisted = dict.fromkeys((*self._unlisted, *lost))
        self._unlisted = [name for name in unlisted if name not in farms][-UNLISTED_MAX:]
        self._changed, self._of_file = changed, ""
        self._farms = {**known, **new}


def _poll(place: Place, first_log: SelectedLog | None, next_entries: Mapping[str, int], *, of_all: bool) -> SelectedLog:
    if first_log is None:
        return _poll_first(place, None, next_entries, of_all=of_all)
    return _poll_again(first_log, next_entries, of_all=of_all)


def _poll_first(place: Place, cluster: str | None, next_entries: Mapping[str, int], *, of_all: bool) -> SelectedLog:
    """Query a farm for the first time; return its log and the first entry to read. Raise FarmLogError."""
    of_all = of_all or not next_entries
    status = place.ranges.status(cluster, of_all=of_all)
    if status.cluster not in next_entries and not of_all:
        status = place.ranges.status(status.cluster, of_all=True)
    if status.cluster in next_entries:
        _refuse_compacted(place.ranges, next_entries[status.cluster], status)
        return SelectedLog(place, status, next_entries[status.cluster])
    if place.start == OLDEST:
        return SelectedLog(place, status, max(status.first_index, 1))
    if place.start == SNAPSHOT:
        covered = place.ranges.snapshot_index()
        return SelectedLog(place, status, covered + 1, covered)
    start = int(place.start)
    _refuse_compacted(place.ranges, start, status)
    if start > status.commit_index + 1:
        raise FarmLogError(
            f"the start is entry {start}, but the log is known to be committed only up to entry {status.commit_index}:"
            " choose an earlier one",
        )
    return SelectedLog(place, status, start)


def _poll_again(first_log: SelectedLog, next_entries: Mapping[str, int], *, of_all: bool) -> SelectedLog:
    """Query a known farm again; raise FarmLogError."""
    cluster, place = first_log.status.cluster, first_log.place
    status = place.ranges.status(cluster, of_all=of_all)
    _refuse_compacted(place.ranges, next_entries.get(cluster, first_log.begin), status)
    return SelectedLog(place, status, first_log.begin, first_log.covered)


def _refuse_compacted(ranges: LogRanges, next_entry: int, found: LogStatus) -> None:
    """Raise FarmLogError if the next entry to read is not there any more."""
    if next_entry < found.first_index and next_entry < (oldest := ranges.oldest(found.cluster)):
        raise FarmLogError(
            f"entries {next_entry} to {oldest - 1} were compacted away before they were read; {COMPACTED}"
        )


def _answer(each: _FarmState) -> SelectedLog | None:
    """Return the log from a successful reply; None without one."""
    if each.question is None:
        return None
    if not each.question.done():
        if time.monotonic() - each.requested_at_s > UNANSWERED_SECONDS:
            each.problem = each.problem or "does not answer"
        return None
    question, each.question = each.question, None
    try:
        log = question.result()
    except Exception as error:  # noqa: BLE001 - a fault in querying one farm is that farm's problem
        each.fail(error)
        return None
    if each.first_log is None:
        each.first_log = log
    each.backoff = None
    each.problem, each.is_refused = "", False
    return log
