"""Which farms one stream reads, and what each of them holds now.

    farms.toml                                            option `farms`; JSON of the same shape if it ends in `.json`

        [farms.blog]                                      a name that tables and messages use
        nodes = ["https://10.0.0.1:7650", "https://10.0.0.2:7650"]     any that answers is read
        token_file = "blog.token"                         paths are relative to this file
        certificate = "blog.pem"
        client_key = "blog.key"                           what signs the factors that are submitted to it (`--submit`)

        [farms.shop]
        directory = "/srv/copies/shop"                    a state directory, or a copy of one

The file is read again when it changes: farms join and leave while the stream runs. A change that cannot be read is
told, and the farms stay as they were.

*A farm that cannot be reached holds up no other.* All are asked at the same time, by threads that outlive the question:
who has not answered after a second is left out of this batch, and asked again, each time after twice as long, when its
answer has come or failed. What is wrong with which farm is told in the progress of the query.
"""

import json
import threading
import time
import tomllib
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import msgspec
from msgspec import Struct

from consensus.net.backoff import Backoff
from pipeline.source import log_client
from pipeline.source.endpoint import CredentialError, load_credentials
from pipeline.source.log_client import COMPACTED, FarmLogError, FarmSilentError, LogStatus
from pipeline.source.ranges import DirectoryRanges, LogRanges, NodeRanges

PATIENCE_SECONDS = 1.0
FIRST_PATIENCE_SECONDS = 10.0
"""How long the first answer of a farm is waited for: there is no batch that it could hold up."""
UNANSWERED_SECONDS = 5.0
"""After how long a farm whose answer is waited for is told of: on a busy machine many take longer than a moment."""
ASKED_AT_ONCE = 32
UNLISTED_MAX = 1_000
"""So many names that have left the file are remembered."""
AGAIN_SECONDS, AGAIN_MAX_SECONDS = 2.0, 60.0
OLDEST, SNAPSHOT = "oldest", "snapshot"


@dataclass(frozen=True, slots=True)
class Place:
    """Where one farm is read, and from which entry on: `oldest`, `snapshot` or an index."""

    name: str | None
    ranges: LogRanges
    start: str = OLDEST


@dataclass(frozen=True, slots=True)
class Held:
    """What a farm holds now. `begin` is its first entry that is wanted, `covered` where its snapshot stands."""

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
    """The nodes of one farm of a file, and the files to ask them with."""

    addresses: tuple[str, ...]
    token_file: Path | None = None
    certificate: Path | None = None
    client_key: Path | None = None

    def options(self) -> dict[str, str]:
        """Options of the source `farm` that read this farm alone."""
        files = {"tokenFile": self.token_file, "certificate": self.certificate}
        return {"node": ",".join(self.addresses), **{name: str(file) for name, file in files.items() if file}}


class _File(Struct, forbid_unknown_fields=True):
    farms: dict[str, _FarmInFile]


def _read_farms(path: Path) -> dict[str, _FarmInFile]:
    """The farms of a file. Raises FarmLogError with what is wrong with it."""
    try:
        with path.open("rb") as file:
            content = json.load(file) if path.suffix == ".json" else tomllib.load(file)
        told = msgspec.convert(content, _File)
    except msgspec.ValidationError as error:
        raise FarmLogError(
            f"the farms of {path} cannot be read: {error}; each farm is a table [farms.NAME] with nodes or a directory"
        ) from error
    except (OSError, ValueError) as error:
        raise FarmLogError(f"the farms of {path} cannot be read: {error}") from error
    if not told.farms:
        raise FarmLogError(f"{path} does not name a farm: it needs a table [farms.NAME] for each farm")
    return told.farms


def nodes_of_farms(path: Path) -> dict[str, FarmNodes | None]:
    """The farms of a file by name, and the nodes of each; None of a directory. Raises FarmLogError."""
    return {name: _nodes(farm, path) if farm.nodes else None for name, farm in _read_farms(path).items()}


def _nodes(farm: _FarmInFile, path: Path) -> FarmNodes:
    beside = path.absolute().parent
    files = (None if each is None else beside / each for each in (farm.token_file, farm.certificate, farm.client_key))
    return FarmNodes(tuple(each if "://" in each else str(beside / each) for each in farm.nodes), *files)


def _place(name: str, farm: _FarmInFile, path: Path, page_size: int) -> Place:
    if bool(farm.nodes) == bool(farm.directory):
        raise FarmLogError(f"farms.{name} in {path} needs either `nodes`, a list of control endpoints, or `directory`")
    is_index = farm.start.isascii() and farm.start.isdecimal() and int(farm.start) > 0
    if farm.start not in {OLDEST, SNAPSHOT} and not is_index:
        raise FarmLogError(f"farms.{name} in {path} begins with {farm.start!r}: use oldest, snapshot or an index")
    if farm.directory is not None and farm.client_key is not None:
        raise FarmLogError(
            f"farms.{name} in {path} has a client_key, but a directory does not accept factors: leave it out"
        )
    if farm.directory is not None:
        directory = path.absolute().parent / farm.directory
        return Place(name, DirectoryRanges(directory, farm.committed_through), farm.start)
    nodes = _nodes(farm, path)
    try:
        credentials = load_credentials(nodes.token_file, nodes.certificate)
    except CredentialError as error:
        raise FarmLogError(f"farms.{name} in {path}: {error}") from error
    return Place(name, NodeRanges(nodes.addresses, credentials, page_size), farm.start)


@dataclass(frozen=True, slots=True)
class Unread:
    """The names of farms of which it is not known whether they can be read."""

    waiting: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()


@dataclass(slots=True)
class _Asked:
    """One farm, as far as it has answered."""

    told: _FarmInFile
    place: Place
    begun: Held | None = None
    question: "Future[Held] | None" = None
    asked_s: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(AGAIN_SECONDS, AGAIN_MAX_SECONDS))
    due_s: float = 0.0
    problem: str = ""


class OneFarm:
    """A single farm, named by the options themselves. Whatever is wrong with it ends the reading."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._begun: Held | None = None

    @property
    def problems(self) -> Mapping[str, str]:
        """None is told: it is raised."""
        return {}

    @property
    def unread(self) -> Unread:
        """None: what is wrong is raised."""
        return Unread()

    def look(self, following: Mapping[str, int], *, thorough: bool) -> dict[str, Held]:
        """What it holds, by its cluster id. `following`: which cluster was read, and its next entry.

        Raises FarmLogError.
        """
        if len(following) > 1:
            raise FarmLogError(f"the tables contain {len(following)} farms: name them all with --farms")
        cluster = next(iter(following), None)
        if self._begun is None:
            held = self._begun = _begun(self._place, cluster, following, of_all=thorough)
        else:
            held = _once_more(self._begun, following, of_all=thorough)
        return {held.status.cluster: held}

    def gone(self, _clusters: Collection[str]) -> frozenset[str]:
        """None has left."""
        return frozenset()

    def places(self, clusters: frozenset[str]) -> dict[str, Place]:
        """Where these clusters are read: here. A place of another cluster refuses to be read as one of them."""
        return dict.fromkeys(clusters, self._place)


class ManyFarms:
    """The farms of a file. What is wrong with one is told, and the others are read. Raises FarmLogError at first."""

    def __init__(self, path: Path, page_size: int) -> None:
        self._path = path
        self._page_size = page_size
        self._changed = (0, 0)
        self._asked: dict[str, _Asked] = {}
        self._pool: _Pool | None = None
        self._of_file = ""
        self._unlisted: list[str] = []
        self._read_again()
        if self._of_file:
            raise FarmLogError(self._of_file)

    @property
    def problems(self) -> Mapping[str, str]:
        """What is wrong with which farm, by name, and with the file itself."""
        found = {name: each.problem for name, each in self._asked.items() if each.problem}
        return {str(self._path): self._of_file, **found} if self._of_file else found

    @property
    def unread(self) -> Unread:
        """The farms that are not read and have no problem: they have not answered yet, or are not listed any more."""
        waiting = [name for name, each in self._asked.items() if each.begun is None and not each.problem]
        return Unread(waiting=tuple(waiting), unlisted=tuple(self._unlisted))

    def look(self, following: Mapping[str, int], *, thorough: bool) -> dict[str, Held]:
        """What those farms hold that answer soon, by cluster id; `thorough`: of all, as long as that takes.

        `following`: the next entry of each farm that was read.
        """
        self._read_again()
        now_s = time.monotonic()
        pool = self._pool = self._pool or _Pool()
        for each in self._asked.values():
            if each.question is None and (each.due_s <= now_s or thorough):
                each.asked_s = now_s
                each.question = pool.submit(partial(_ask, each.place, each.begun, following, of_all=thorough))
        waiting = [each.question for each in self._asked.values() if each.question is not None]
        is_first = all(each.begun is None for each in self._asked.values())
        patience_s = FIRST_PATIENCE_SECONDS if is_first else PATIENCE_SECONDS
        wait(waiting, None if thorough else patience_s)
        found: dict[str, Held] = {}
        for name, each in self._asked.items():
            held = _answer(each)
            if held is not None and held.status.cluster in found:
                other = found[held.status.cluster].place.name
                each.problem = f"{name} and {other} are one farm, the cluster {held.status.cluster}: name it once"
            elif held is not None:
                found[held.status.cluster] = held
        return found

    def gone(self, clusters: Collection[str]) -> frozenset[str]:
        """Which of these have left the file; none while a farm in it has not told its cluster."""
        known = {each.begun.status.cluster for each in self._asked.values() if each.begun is not None}
        is_known = all(each.begun is not None for each in self._asked.values())
        return frozenset(clusters) - known if is_known else frozenset()

    def places(self, clusters: frozenset[str]) -> dict[str, Place]:
        """Where these clusters are read. Raises FarmSilentError when one of them has not answered for long."""
        until_s = time.monotonic() + log_client.SILENCE_SECONDS
        while True:
            begun_by_now = (each.begun for each in self._asked.values())
            # Of two names of one farm the first is the one that counts.
            found = {each.status.cluster: each.place for each in reversed([*begun_by_now]) if each is not None}
            missing = clusters - found.keys()
            if not missing:
                return found
            if time.monotonic() > until_s:
                text = "; ".join(f"{name}: {problem}" for name, problem in self.problems.items())
                raise FarmSilentError(
                    f"an interrupted batch must be read again, and no node of {', '.join(sorted(missing))}, a farm of"
                    f" the batch, answers ({text}): start that farm, or name it in {self._path} again"
                )
            self.look({}, thorough=False)

    def _read_again(self) -> None:
        """The file, if it has changed."""
        try:
            now = self._path.stat()
            changed = (now.st_mtime_ns, now.st_size)
            if changed == self._changed:
                return
            told = _read_farms(self._path)
            known = {name: each for name, each in self._asked.items() if told.get(name) == each.told}
            new = {
                name: _Asked(farm, _place(name, farm, self._path, self._page_size))
                for name, farm in told.items()
                if name not in known
            }
        except (OSError, FarmLogError) as error:
            self._of_file = str(error) if isinstance(error, FarmLogError) else f"{self._path} cannot be read: {error}"
            return
        lost = [name for name, each in self._asked.items() if name not in told and (each.problem or each.begun is None)]
        unlisted = dict.fromkeys((*self._unlisted, *lost))
        self._unlisted = [name for name in unlisted if name not in told][-UNLISTED_MAX:]
        self._changed, self._of_file = changed, ""
        self._asked = {**known, **new}


def _ask(place: Place, begun: Held | None, following: Mapping[str, int], *, of_all: bool) -> Held:
    if begun is None:
        return _begun(place, None, following, of_all=of_all)
    return _once_more(begun, following, of_all=of_all)


def _begun(place: Place, cluster: str | None, following: Mapping[str, int], *, of_all: bool) -> Held:
    """What a farm holds, asked for the first time, and where reading it begins; raises FarmLogError."""
    of_all = of_all or not following
    status = place.ranges.status(cluster, of_all=of_all)
    if status.cluster not in following and not of_all:
        status = place.ranges.status(status.cluster, of_all=True)
    if status.cluster in following:
        _refuse_compacted(place.ranges, following[status.cluster], status)
        return Held(place, status, following[status.cluster])
    if place.start == OLDEST:
        return Held(place, status, max(status.first_index, 1))
    if place.start == SNAPSHOT:
        covered = place.ranges.snapshot_index()
        return Held(place, status, covered + 1, covered)
    start = int(place.start)
    _refuse_compacted(place.ranges, start, status)
    if start > status.commit_index + 1:
        raise FarmLogError(
            f"the log is known to be committed up to entry {status.commit_index}, and reading is to begin with"
            f" {start}: choose an earlier one",
        )
    return Held(place, status, start)


def _once_more(begun: Held, following: Mapping[str, int], *, of_all: bool) -> Held:
    """What the same farm holds now; raises FarmLogError."""
    cluster, place = begun.status.cluster, begun.place
    status = place.ranges.status(cluster, of_all=of_all)
    _refuse_compacted(place.ranges, following.get(cluster, begun.begin), status)
    return Held(place, status, begun.begin, begun.covered)


def _refuse_compacted(ranges: LogRanges, following: int, found: LogStatus) -> None:
    """Raises FarmLogError if the entry that is read next is not there any more."""
    if following < found.first_index and following < (oldest := ranges.oldest(found.cluster)):
        raise FarmLogError(
            f"entries {following} to {oldest - 1} were compacted away before they were read; {COMPACTED}"
        )


def _answer(each: _Asked) -> Held | None:
    """The answer that has come, if one has and it is good."""
    if each.question is None:
        return None
    if not each.question.done():
        if time.monotonic() - each.asked_s > UNANSWERED_SECONDS:
            each.problem = each.problem or "does not answer"
        return None
    question, each.question = each.question, None
    try:
        held = question.result()
    except FarmLogError as error:
        each.due_s = time.monotonic() + each.backoff.next_s()
        each.problem = str(error)
        return None
    if each.begun is None:
        each.begun = held
    each.backoff.reset()
    each.problem = ""
    return held


class _Pool:
    """Threads that ask. They are daemons: a farm that hangs must not keep a process that ends."""

    def __init__(self) -> None:
        self._work: SimpleQueue[tuple[Future[Held], Callable[[], Held]]] = SimpleQueue()
        self._threads = 0
        self._lock = threading.Lock()

    def submit(self, call: Callable[[], Held]) -> "Future[Held]":
        """What it will return."""
        future: Future[Held] = Future()
        self._work.put((future, call))
        with self._lock:
            if self._threads < ASKED_AT_ONCE:
                self._threads += 1
                threading.Thread(target=self._run, name="asks-farms", daemon=True).start()
        return future

    def _run(self) -> None:
        while True:
            future, call = self._work.get()
            try:
                future.set_result(call())
            except FarmLogError as error:
                future.set_exception(error)
            except Exception as error:  # noqa: BLE001 - a fault in asking one farm is that farm's problem
                future.set_exception(FarmLogError(f"cannot be queried, because of a fault of the pipeline: {error!r}"))
