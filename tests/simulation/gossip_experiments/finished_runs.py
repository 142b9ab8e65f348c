"""Finished runs are stored as lines of a file, so that hours of simulation survive an interruption.

    {"run": "interval_run", "part": "plain SWIM", "cell": [4, 8192, 16], "seed": 7, "found": {"everywhere": 12, ...}}

The arguments determine a run, so they are its name: the same arguments return the stored result. This is valid for one
version of the core; delete the file after a change of it. An incomplete last line is ignored.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Found = TypeVar("Found", bound=DataclassInstance)
else:
    Found = TypeVar("Found")


class FinishedRuns:
    """Results by run; without a path nothing is stored."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._kept: dict[str, dict[str, Any]] = {}
        if path is not None and path.exists():
            whole, cut, _ = path.read_text(encoding="utf-8").rpartition("\n")
            path.write_text(whole + cut, encoding="utf-8")
            for line in whole.splitlines():
                run = json.loads(line)
                found = run.pop("found")
                self._kept[_name(run)] = found

    def once(self, kind: type[Found], run: Mapping[str, object], play: Callable[[], Found]) -> Found:
        """Return the result of a run, stored or new.

        `kind` is its type: a dataclass of numbers and tuples of numbers.
        """
        name = _name(run)
        if name in self._kept:
            kept = {key: tuple(value) if isinstance(value, list) else value for key, value in self._kept[name].items()}
            return kind(**kept)
        found = play()
        self._kept[name] = asdict(found)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**run, "found": self._kept[name]}) + "\n")
        return found


def _name(run: Mapping[str, object]) -> str:
    return json.dumps(run, sort_keys=True)
