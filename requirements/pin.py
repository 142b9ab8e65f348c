"""Writes the hashed requirements: what the base install and the build backend are made of, byte for byte.

    base.txt    every package that `pip install .` needs, at the version that constraints.txt has
    build.txt   the build backend of pyproject.toml, likewise

For each package stand the SHA-256 of its source archive and of its wheels for the Pythons and platforms below; on any
other, pip builds from the source archive. Run by `make requirements` after constraints.txt or pyproject.toml has
changed; what it writes is reviewed and committed. pip's own machinery asks the index that the machine is configured
for, and pip tells which packages are needed. It has no public words for "all files of a release", hence its internals
here: a newer pip may need another `_files`. Nothing but this script depends on them.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
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

HERE = Path(__file__).parent
ROOT = HERE.parent
PYTHONS = ("cp311", "cp312", "cp313", "cp314")
PLATFORM = re.compile(r"any|manylinux\w+_(x86_64|aarch64)|macosx_\w+_(x86_64|arm64|universal2)")
HEAD = "# Written by requirements/pin.py (`make requirements`) from {sources}; see there.\n"


def main() -> int:
    """Write both files."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pinned = ["-c", str(ROOT / "constraints.txt")]
    for file, wanted, sources in (
        ("base.txt", project["project"]["dependencies"], "pyproject.toml and constraints.txt"),
        ("build.txt", project["build-system"]["requires"], "the build-system of pyproject.toml and constraints.txt"),
    ):
        packages = _resolved([*pinned, *wanted])
        blocks = [_block(name, version) for name, version in sorted(packages.items())]
        (HERE / file).write_text(HEAD.format(sources=sources) + "".join(blocks))
        sys.stdout.write(f"requirements/{file}: {len(packages)} packages\n")
    return 0


def _resolved(wanted: list[str]) -> dict[str, str]:
    """What pip would install: names as pip compares them, and versions."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--dry-run",
        "--ignore-installed",
        "--report",
        "-",
        *wanted,
    ]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)  # noqa: S603 - pip
    found = (each["metadata"] for each in report["install"])
    return {canonicalize_name(each["name"]): each["version"] for each in found}


def _block(name: str, version: str) -> str:
    hashes = sorted({(link.filename, link.hash or "") for link in _files(name) if _is_wanted(link, name, version)})
    if not hashes:
        raise SystemExit(f"the index has no file of {name} {version} with a SHA-256 that the Pythons here could use")
    lines = [f"{name}=={version}", *(f"    --hash=sha256:{digest}" for _, digest in hashes)]
    return " \\\n".join(lines) + "\n"


def _files(name: str) -> Iterator[Link]:
    """Every file that the index has of a package."""
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
    except (InvalidSdistFilename, InvalidWheelFilename):
        return False
    return (package, str(found)) == (name, version) and any(map(_fits, tags))


def _fits(tag: Tag) -> bool:
    if PLATFORM.fullmatch(tag.platform) is None:
        return False
    if tag.abi == "abi3":
        return int(tag.interpreter.removeprefix("cp3") or 0) <= int(PYTHONS[0].removeprefix("cp3"))
    return tag.interpreter == "py3" or (tag.interpreter in PYTHONS and tag.abi == tag.interpreter)


if __name__ == "__main__":
    sys.exit(main())
