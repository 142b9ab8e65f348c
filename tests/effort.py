"""The size of a search: `make test` runs a few seeds, `make soak` (GARLICFARM_SOAK=1) many.

A test proves a claim with its smallest example. A search for unforeseen faults finds more the longer it runs, so it
belongs where hours are available. Such a test has the mark `search`, which `make soak` selects.

The cases of a table run in a few microseconds each, but every worker needs milliseconds to collect and report a test.
`each_case` makes such a table one test.
"""

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from _pytest.mark import ParameterSet

IS_SOAK = os.environ.get("GARLICFARM_SOAK") == "1"
SEEDS = 5
EXAMPLES = 300 if IS_SOAK else 25
"""Examples of a Hypothesis test."""
GROUP_SEEDS = (1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (2, 3)))
"""Seeds of simulated gossip groups."""

CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def room_in_memory(place: Path, limits: Sequence[Path] = CONTAINER_LIMITS) -> int:
    """Return how many bytes files in `place` may have: its size, and at most the free memory of machine and container.

    It is 0 if `place` is missing, cannot be written, or does not execute files.
    """
    if not os.access(place, os.W_OK):
        return 0
    system = os.statvfs(place)
    texts = [each.read_text().strip() for each in limits if each.is_file()]
    size = 0 if system.f_flag & os.ST_NOEXEC else system.f_bavail * system.f_frsize
    return min(size, psutil.virtual_memory().available, *(int(each) for each in texts if each.isdecimal()))


def few_of(cases: Mapping[str, object], *quick: str) -> list[ParameterSet]:
    """Return the cases with their ids as parameters: `make test` runs those in `quick`, and `make soak` all others."""
    if unknown := set(quick) - set(cases):
        raise ValueError(f"no such cases: {sorted(unknown)}")
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), id=name, marks=() if name in quick else pytest.mark.soak
        )
        for name, case in cases.items()
    ]


def over_seeds(many: int, quick: int = SEEDS) -> pytest.MarkDecorator:
    """Return the parameter `seed` of a search: `many` seeds in `make soak`, the first `quick` seeds in `make test`."""
    found = [pytest.param(seed, marks=pytest.mark.search) for seed in range(many if IS_SOAK else quick)]
    return pytest.mark.parametrize("seed", found)


def each_case(
    names: str | Sequence[str], cases: Iterable[Any], ids: Iterable[str] | Callable[[Any], object] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call the test with each case, as one test that fails with all failures. `parametrize` has the same arguments.

    Each case has its own `tmp_path`; the other fixtures are shared. Each failure has a note with its case.
    """
    arguments = [each.strip() for each in names.split(",")] if isinstance(names, str) else list(names)
    is_one = isinstance(names, str) and len(arguments) == 1
    table = [tuple(case.values if isinstance(case, ParameterSet) else (case,) if is_one else case) for case in cases]
    names_of_cases = list(ids) if isinstance(ids, Iterable) else None
    if not table:
        raise ValueError(f"no case of {names}")

    def decorated(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def run(**fixtures: object) -> None:
            failures = list[BaseException]()
            path = fixtures.get("tmp_path")
            for number, values in enumerate(table):
                if isinstance(path, Path):
                    fixtures["tmp_path"] = path / str(number)
                    (path / str(number)).mkdir()
                try:
                    test(**dict(zip(arguments, values, strict=True)), **fixtures)
                except (Exception, pytest.fail.Exception) as failure:  # noqa: BLE001 - all failures are reported
                    of_values = map(ids, values) if callable(ids) else [f"{values!r:.200}"]
                    failure.add_note(
                        f"case {names_of_cases[number] if names_of_cases else '-'.join(map(str, of_values))}"
                    )
                    failures.append(failure)
            if failures:
                raise BaseExceptionGroup(f"{len(failures)} of {len(table)} cases failed", failures)

        others = [each for name, each in signature.parameters.items() if name not in arguments]
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined] # read by pytest
        return run

    return decorated
