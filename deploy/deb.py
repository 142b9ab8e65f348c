"""The Debian package, built by dpkg-deb from a staged tree: no debhelper, since nothing of it is compiled here.

    usr/lib/garlicfarm           the environment: libraries by hash, and the wheel in dist/ (`deploy.environment`)
    usr/bin/garlicfarm           a link to its command
    lib/systemd/system           the service; usr/lib/systemd/user has the client's, for users
    etc/garlicfarm/node.toml     the configuration, with every setting; a conffile
    usr/share/garlicfarm         alerts for Prometheus and dashboards for Grafana, from the wheel
    usr/share/…                  manual pages, completions, changelog, licenses

The package's scripts compile the modules when it is configured, and remove the compiled files before it is removed. The
libraries' binaries are for one Python, so the package is for one release of a distribution.

`python -m deploy.deb --dist dist [--python 3.13] [--arch arm64]` builds the package and prints its path. Two builds
from one commit have the same bytes: files have the time of the commit (SOURCE_DATE_EPOCH has priority).
"""

import argparse
import gzip
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from email.utils import formatdate
from pathlib import Path

from bridge import VERSION
from bridge.cli.help.completion import SHELLS, completion_script
from bridge.cli.main import cli
from deploy import example_configuration, man_pages
from deploy.environment import PREFIX, ROOT, PackagingError, Target, glibc_needed, install, own_wheel, supported_target

FILES = ROOT / "deploy" / "debian"
REVISION = 1
MAINTAINER = "Garlic Farm <garlicfarm@packages.invalid>"
CONFIGURATION = Path("etc/garlicfarm/node.toml")
SHARED = Path("share/garlicfarm")
"""The wheel's files for other programs; pip puts them below the modules."""
SCRIPTS = ("postinst", "prerm", "postrm")
COMPLETIONS = {
    "bash": Path("usr/share/bash-completion/completions/garlicfarm"),
    "zsh": Path("usr/share/zsh/vendor-completions/_garlicfarm"),
    "fish": Path("usr/share/fish/vendor_completions.d/garlicfarm.fish"),
}
DESCRIPTION = """\
high-availability groups of I2P routers
 A service in I2P has one address, usually served by one router: if the router
 is down, the service is down too. With Garlic Farm, several routers serve one
 address. A node runs next to each router. Nodes discover each other by gossip,
 agree on the healthy routers by Raft, and publish these routers under the
 service's address. If a router fails, the other nodes publish again in seconds."""


def version(target: Target) -> str:
    """Return the version of the package: the program's version, and the release."""
    return f"{VERSION}-{REVISION}+{target.release.suffix}"


def package_name(target: Target) -> str:
    """Return the name of the file."""
    return f"garlicfarm_{version(target)}_{target.architecture}.deb"


def build(target: Target, dist: Path) -> Path:
    """Build the package into `dist`, from the wheel there. Raise PackagingError."""
    if shutil.which("dpkg-deb") is None:
        raise PackagingError("dpkg-deb is missing, which builds the Debian package (Debian: apt-get install dpkg)")
    with tempfile.TemporaryDirectory(prefix="garlicfarm-deb-") as scratch:
        root = Path(scratch) / "root"
        stage(target, own_wheel(dist), root)
        package = dist / package_name(target)
        command = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(root), str(package)]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(commit_time_s())}
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            raise PackagingError(f"dpkg-deb failed: {done.stderr.strip()}")
    return package


def stage(target: Target, wheel: Path, root: Path) -> None:
    """Lay out below `root` all files of the package, its control files too."""
    root.mkdir(mode=0o755)
    site = install(target, wheel, root)
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/garlicfarm").symlink_to(Path("../lib") / PREFIX.name / "bin" / "garlicfarm")
    (root / "usr/share").mkdir()
    (site / SHARED).rename(root / "usr" / SHARED)
    (site / SHARED).parent.rmdir()
    _write(root / "lib/systemd/system/garlicfarm.service", (FILES / "garlicfarm.service").read_text(encoding="utf-8"))
    user_unit = "garlicfarm-connect.service"
    _write(root / "usr/lib/systemd/user" / user_unit, (FILES / user_unit).read_text(encoding="utf-8"))
    _write(root / CONFIGURATION, example_configuration.text())
    for name, page in man_pages.pages().items():
        _write_compressed(root / f"usr/share/man/man{name[-1]}" / f"{name}.gz", page)
    for shell in SHELLS:
        _write(root / COMPLETIONS[shell], completion_script(cli, shell))
    documents = root / "usr/share/doc/garlicfarm"
    _write(documents / "copyright", (FILES / "copyright").read_text(encoding="utf-8"))
    _write_compressed(documents / "changelog.gz", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    _write_compressed(documents / "changelog.Debian.gz", _changelog(target))
    _write(root / "usr/share/lintian/overrides/garlicfarm", (FILES / "lintian-overrides").read_text(encoding="utf-8"))
    _normalize(root)
    _control(target, root, site)


def _control(target: Target, root: Path, site: Path) -> None:
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    sums = "".join(
        f"{_md5(path)}  {path.relative_to(root)}\n" for path in files if not path.is_relative_to(root / "etc")
    )
    installed_kib = sum((path.stat().st_size + 1023) // 1024 for path in files)
    own_glibc = int(platform.libc_ver()[1].rpartition(".")[2] or target.release.glibc)
    fields = {
        "Package": "garlicfarm",
        "Version": version(target),
        "Architecture": target.architecture,
        "Maintainer": MAINTAINER,
        "Installed-Size": str(installed_kib),
        "Depends": f"python{target.release.python}, libc6 (>= 2.{glibc_needed(site, own_glibc)}), adduser",
        "Suggests": "i2pd, bash-completion",
        "Section": "net",
        "Priority": "optional",
        "Description": DESCRIPTION,
    }
    control = root / "DEBIAN"
    _write(control / "control", "".join(f"{name}: {value}\n" for name, value in fields.items()))
    _write(control / "conffiles", f"/{CONFIGURATION}\n")
    _write(control / "md5sums", sums)
    for name in SCRIPTS:
        _write(control / name, (FILES / name).read_text(encoding="utf-8"))
        (control / name).chmod(0o755)
    control.chmod(0o755)


def _changelog(target: Target) -> str:
    return (
        f"garlicfarm ({version(target)}) unstable; urgency=medium\n\n  * See changelog.gz.\n\n"
        f" -- {MAINTAINER}  {formatdate(commit_time_s())}\n"
    )


def commit_time_s() -> int:
    """Return the time of the build: SOURCE_DATE_EPOCH, else the time of the last commit, else now."""
    epoch_s = os.environ.get("SOURCE_DATE_EPOCH", "")
    if epoch_s.isdigit():
        return int(epoch_s)
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip() else int(time.time())


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    path.chmod(0o644)


def _write_compressed(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content.encode(), mtime=0))
    path.chmod(0o644)


def _normalize(root: Path) -> None:
    """Set modes that do not depend on the builder's umask or on the wheel."""
    for path in root.rglob("*"):
        if path.is_symlink():
            continue
        is_command = path.is_dir() or path.parent == root / PREFIX.relative_to("/") / "bin"
        path.chmod(0o755 if is_command else 0o644)


def _md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def main() -> int:
    """Build what the options name."""
    parser = argparse.ArgumentParser(prog="python -m deploy.deb", description="Build the Debian package.")
    parser.add_argument(
        "--dist", type=Path, default=ROOT / "dist", help="directory of the wheel and of the new package"
    )
    parser.add_argument("--python", default="3.11", help="the Python of the release (default: 3.11, Debian 12)")
    parser.add_argument("--arch", default=own_architecture(), help="amd64 or arm64 (default: this machine's)")
    options = parser.parse_args()
    try:
        package = build(supported_target(options.python, options.arch), options.dist)
    except PackagingError as error:
        sys.stderr.write(f"no Debian package: {error}\n")
        return 1
    sys.stdout.write(f"{package}\n")
    return 0


def own_architecture() -> str:
    """Return Debian's name of this machine's architecture."""
    return {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "armhf"}.get(platform.machine(), platform.machine())


if __name__ == "__main__":
    sys.exit(main())
