"""The container image: every step of the Containerfile is done on a bare Debian, and what it would start publishes.

No builder of images is needed: mmdebstrap makes the base out of Debian's packages, and the steps are run as a builder
would run them, in namespaces. Only they may use the network; what is started then has loopback alone.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deploy.environment import ROOT
from tests.end_to_end.layout import read_meta_lease_set
from tests.packages.machine import Machine, child_of, clean_environment
from tests.packages.on_loopback import DEMO, ON_LOOPBACK

pytestmark = pytest.mark.packages

CONTEXT = ROOT / "dist" / "oci"
PUBLISHED_BOUND_S = 60.0
END_BOUND_S = 30.0


@dataclass
class Image:
    """What a Containerfile has made: a file system, and how it is to be started."""

    machine: Machine
    environment: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    check: str = ""
    volumes: list[str] = field(default_factory=list)

    def as_user(self, arguments: list[str]) -> list[str]:
        """The command by which an engine starts `arguments` in the image."""
        user, group = self.user.split(":")
        return ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--bounding-set=-all", *arguments]


def instructions(text: str) -> list[tuple[str, str]]:
    """The steps of a Containerfile."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines())]


def carry_out(image: Image, name: str, rest: str) -> None:  # noqa: C901 - a line for each kind of step
    """One step, as a builder does it."""
    match name:
        case "FROM":
            release = image.machine.run("sh", "-c", ". /etc/os-release; echo $VERSION_CODENAME").stdout.strip()
            assert rest.startswith(f"debian:{release}")
        case "RUN":
            image.machine.run("sh", "-c", rest, environment={"DEBIAN_FRONTEND": "noninteractive"}, network=True)
        case "COPY":
            source, place = rest.split()
            (image.machine.root / place.lstrip("/")).write_bytes((CONTEXT / source).read_bytes())
        case "ENV":
            key, _, value = rest.partition("=")
            image.environment[key] = value
        case "USER":
            image.user = rest
        case "VOLUME":
            image.volumes.append(rest)
        case "HEALTHCHECK":
            image.check = rest.partition("CMD ")[2]
        case "ENTRYPOINT":
            image.entrypoint = json.loads(rest)
        case "CMD":
            image.command = json.loads(rest)
        case "WORKDIR":
            assert (image.machine.root / rest.lstrip("/")).is_dir()
        case "EXPOSE" | "STOPSIGNAL":
            pass
        case _:
            raise AssertionError(f"no step is called {name}")


@pytest.fixture(scope="module")
def image(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """Built once."""
    assert CONTEXT.is_dir(), f"{CONTEXT} is not there: `make dist` lays it out beside {package.name}"
    if shutil.which("mmdebstrap") is None:
        pytest.skip("needs mmdebstrap, which makes a bare Debian (Debian: apt-get install mmdebstrap)")
    base = tmp_path_factory.mktemp("base")
    subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", "bookworm", base], check=True, timeout=900)  # noqa: S607
    with Machine(tmp_path_factory.mktemp("image"), base) as machine:
        resolving = machine.root / "etc/resolv.conf"
        resolving.unlink(missing_ok=True)
        resolving.write_bytes(Path("/etc/resolv.conf").read_bytes())
        made = Image(machine)
        for name, rest in instructions((CONTEXT / "Containerfile").read_text()):
            carry_out(made, name, rest)
        yield made


def test_the_volume_belongs_to_the_user_of_the_image(image: Image) -> None:
    assert image.user == "7668:7668"
    for volume in image.volumes:
        assert image.machine.run("stat", "-c", "%u:%g %a", volume).stdout.strip() == "7668:7668 700"


def test_the_image_holds_no_key_and_no_list_of_packages(image: Image) -> None:
    assert [path.name for path in (image.machine.root / "etc/garlicfarm").iterdir()] == ["node.toml"]
    assert not list((image.machine.root / "var/lib/apt/lists").iterdir())
    assert not (image.machine.root / "tmp/garlicfarm.deb").exists()


def test_what_the_image_starts_publishes_and_its_check_tells_whether_it_runs(image: Image) -> None:
    machine = image.machine
    machine.run("garlicfarm", "keys", "new-farm", "--expect", "1", "--output", "/etc/garlicfarm/farm.key")
    for file in ("/srv/master.key", "/srv/leaf.key"):
        machine.run("garlicfarm", "keys", "new-destination", file)
    signing = ("keys", "offline", "--master", "/srv/master.key", "--out", "/etc/garlicfarm/signing.key")
    machine.run("garlicfarm", *signing)
    machine.run("sh", "-c", "chown 7668:7668 /etc/garlicfarm/*.key")
    leaf = tomllib.loads((machine.root / "srv/leaf.key").read_text())["destination"]
    configuration = machine.root / "etc/garlicfarm/node.toml"
    head = configuration.read_text().partition("\n[gossip]\n")[0].replace(*DEMO)
    configuration.write_text(head + ON_LOOPBACK.format(leaf=leaf))

    def is_well() -> bool:
        check = image.as_user(["sh", "-c", image.check])
        return machine.run(*check, environment=image.environment, check=False).returncode == 0

    assert not is_well()
    with (machine.root / "srv/node.log").open("w") as log:
        node = subprocess.Popen(
            machine.command(image.as_user([*image.entrypoint, *image.command])),
            stdout=log,
            stderr=subprocess.STDOUT,
            env=clean_environment(image.environment),
        )
    try:
        structure = machine.wait_for("/var/lib/garlicfarm/published/*", PUBLISHED_BOUND_S)
        assert len(read_meta_lease_set(structure).entries) == 1
        assert is_well()
        os.kill(child_of(node.pid), signal.SIGTERM)
        assert node.wait(END_BOUND_S) == 0
        assert not is_well()
    finally:
        if node.poll() is None:
            os.kill(child_of(node.pid), signal.SIGKILL)
            node.wait(END_BOUND_S)
        print((machine.root / "srv/node.log").read_text())  # noqa: T201 - if it fails
