"""Write the hashed requirements: each package that runs in production, with the SHA-256 of its files.

    base.txt     every package that `pip install .` needs, at the version that constraints.txt has
    extras.txt   every further package that the extras of EXTRAS need, also with the versions of constraints.txt
    build.txt    the build backend of pyproject.toml, also with the versions of constraints.txt

Each package has the SHA-256 of its source archive and of its wheels for the Pythons and platforms below. On any other
platform, pip builds from the source archive. `make requirements` runs this script after a change of constraints.txt or
pyproject.toml; its output is reviewed and committed. pip resolves the packages and reads the index that the machine is
configured for. pip does not have a public interface for "all files of a release", so `_files` uses its internals: a
newer pip may need another `_files`. Only this script depends on them.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from pip._internal.commands import create_command
from pip._internal.index.collector import LinkCollector, parse_links
from pip._internal.models.link import Link
from pip._vendor.packaging.tags import Tag
from pip._vendor.packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from pip._vendor.packaging.version import InvalidVersion

HERE = Path(__file__).parent
ROOT = HERE.parent
EXTRAS = ("pipeline", "zmq", "kafka")
PYTHONS = ("cp311", "cp312", "cp313", "cp314")
PLATFORM = re.compile(r"any|manylinux\w+_(x86_64|aarch64)|macosx_\w+_(x86_64|arm64|universal2)")
HEAD = "# Written by requirements/pin.py (`make requirements`) from {sources}; see there.\n"


def main() -> int:
    """Write the three files."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed: list[str] = project["project"]["dependencies"]
    optional: dict[str, list[str]] = project["project"]["optional-dependencies"]
    base = _resolved(needed)
    extras = _resolved([*needed, *(each for extra in EXTRAS for each in optional[extra])])
    _write("base.txt", base.items(), "pyproject.toml and constraints.txt")
    _write(
        "extras.txt",
        extras.items() - base.items(),
        f"the extras {', '.join(EXTRAS)} of pyproject.toml, without base.txt,",
    )
    _write("build.txt", _resolved(project["build-system"]["requires"]).items(), "the build-system of pyproject.toml")
    return 0


def _resolved(wanted: list[str]) -> dict[str, str]:
    """Return the packages that pip would install: normalized names with versions."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--report", "-"]
    command += ["-c", str(ROOT / "constraints.txt"), *wanted]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)  # noqa: S603 - pip
    found = (each["metadata"] for each in report["install"])
    return {canonicalize_name(each["name"]): each["version"] for each in found}


def _write(file: str, packages: Iterable[tuple[str, str]], sources: str) -> None:
    blocks = [_block(name, version) for name, version in sorted(packages)]
    (HERE / file).write_text(HEAD.format(sources=sources) + "".join(blocks))
    sys.stdout.write(f"requirements/{file}: {len(blocks)} packages\n")


def _block(name: str, version: str) -> str:
    hashes = sorted({(link.filename, link.hash or "") for link in _files(name) if _is_wanted(link, name, version)})
    if not hashes:
        raise SystemExit(f"the index does not have a file of {name} {version} with a SHA-256 for these Pythons")
    lines = [f"{name}=={version}", *(f"    --hash=sha256:{digest}" for _, digest in hashes)]
    return " \\\n".join(lines) + "\n"


def _files(name: str) -> Iterator[Link]:
    """Yield every file that the index has of a package."""
    command = create_command("download")
    options, _ = command.parse_args([])
    with command.main_context():
        collector = LinkCollector.create(command.get_default_session(options), options)
        for location in collector.search_scope.get_index_urls_locations(name):
            page = collector.fetch_response(Link(location))
            if page is not None:
                yield from parse_links(page)


def _is_wanted(link: Link, name: str, version: str) -> bool:
    if link.hash_name != "sha256" or link.is_yanked:
        return False
    try:
        if not link.is_wheel:
            package, found = parse_sdist_filename(link.filename)
            return (package, str(found)) == (name, version)
        package, found, _, tags = parse_wheel_filename(link.filename)
    except (InvalidSdistFilename, InvalidWheelFilename, InvalidVersion):  # an index may have files of any name
        return False
    return (package, str(found)) == (name, version) and any(map(_fits, tags))


def _fits(tag: Tag) -> bool:
    if PLATFORM.fullmatch(tag.platform) is None:
        return False
    if tag.abi == "abi3":
        return int(tag.interpreter.removeprefix("cp3") or 0) <= int(PYTHONS[-1].removeprefix("cp3"))
    return tag.interpreter == "py3" or (tag.interpreter in PYTHONS and tag.abi == tag.interpreter)


if __name__ == "__main__":
    sys.exit(main())
