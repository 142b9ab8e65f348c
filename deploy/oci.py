"""The container image: dist/oci, the context for any builder, and an archive if a builder is available.

    Containerfile, dist/garlicfarm_*.deb ──▶ dist/oci ──▶ podman | buildah | docker ──▶ dist/garlicfarm-image.tar

`python -m deploy.oci --dist dist` does both steps. If an installed builder does not work here, such as docker's command
without its daemon, the reason is reported. The context remains for another machine.

The image is in Docker's format, which every engine loads: OCI's format lacks a place for the health check, so builders
drop it there.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from bridge import VERSION
from deploy.deb import own_architecture, package_name
from deploy.environment import ROOT, PackagingError, supported_target

RELEASE_PYTHON = "3.11"
"""The Python of the release in the Containerfile."""
TAG = f"garlicfarm:{VERSION}"
ARCHIVE = "garlicfarm-image.tar"
BUILD_TIMEOUT_S = 1800
BUILDERS = {
    "podman": (
        ["build", "--format", "docker", "--tag", TAG],
        ["save", "--format", "docker-archive", "--output", "{archive}", TAG],
    ),
    "buildah": (
        ["build", "--isolation", "chroot", "--format", "docker", "--tag", TAG],
        ["push", TAG, "docker-archive:{archive}:" + TAG],
    ),
    "docker": (["build", "--file", "{context}/Containerfile", "--tag", TAG], ["save", "--output", "{archive}", TAG]),
}


def lay_out(dist: Path, architecture: str) -> Path:
    """Write the context from the files in `dist`; raise PackagingError if the package is missing."""
    package = dist / package_name(supported_target(RELEASE_PYTHON, architecture))
    if not package.exists():
        raise PackagingError(f"{package} is not there: `make dist` builds it first")
    context = dist / "oci"
    shutil.rmtree(context, ignore_errors=True)
    context.mkdir()
    shutil.copy(ROOT / "deploy" / "oci" / "Containerfile", context)
    shutil.copy(package, context / "garlicfarm.deb")
    return context


def build(context: Path, archive: Path) -> list[str]:
    """Make the archive with the first builder that works; return the reasons of the failed ones."""
    reasons = []
    for name, (build_options, save_options) in BUILDERS.items():
        program = shutil.which(name)
        if program is None:
            continue
        places = {"context": str(context), "archive": str(archive)}
        reason = _run([program, *(each.format(**places) for each in build_options), str(context)])
        reason = reason or _run([program, *(each.format(**places) for each in save_options)])
        if not reason:
            return []
        reasons.append(f"{name}: {reason}")
    return reasons or [f"none of {', '.join(BUILDERS)} is installed (Debian: apt-get install podman)"]


def _run(command: list[str]) -> str:
    """Run a command; return the last line of a failure, or an empty text."""
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    output = (done.stderr or done.stdout).strip().splitlines()
    return "" if done.returncode == 0 else (output or [f"ended with {done.returncode}"])[-1]


def main() -> int:
    """Lay out the context and try to build."""
    parser = argparse.ArgumentParser(prog="python -m deploy.oci", description="Lay out and build the container image.")
    parser.add_argument(
        "--dist", type=Path, default=ROOT / "dist", help="directory of the package and of the new image"
    )
    parser.add_argument("--arch", default=own_architecture(), help="amd64 or arm64 (default: this machine's)")
    options = parser.parse_args()
    try:
        context = lay_out(options.dist, options.arch)
    except PackagingError as error:
        sys.stderr.write(f"no container image: {error}\n")
        return 1
    sys.stdout.write(f"{context}\n")
    archive = options.dist / ARCHIVE
    archive.unlink(missing_ok=True)
    reasons = build(context, archive)
    if reasons:
        sys.stderr.write(
            f"no image archive was built ({'; '.join(reasons)}); build {context} on a machine with a builder\n"
        )
    else:
        sys.stdout.write(f"{archive}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
