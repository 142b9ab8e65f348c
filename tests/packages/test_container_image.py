"""The container image: each step of the Containerfile is executed on a bare Debian, and the started node publishes.

No image builder is needed: mmdebstrap makes the base from Debian's packages, and the steps run in namespaces as a
builder would run them. Only the steps may use the network; the started node has only loopback.
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
    """The result of a Containerfile: a file system, and how to start it."""

    machine: Machine
    environment: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    check: str = ""
    volumes: list[str] = field(default_factory=list)

    def as_user(self, arguments: list[str]) -> list[str]:
        """Return the command of an engine that starts `arguments` in the image."""
        user, group = self.user.split(":")
        return ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--bounding-set=-all", *arguments]


def instructions(text: str) -> list[tuple[str, str]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines())]


def carry_out(image: Image, name: str, rest: str) -> None:  # noqa: C901 - one branch per kind of step
    """Execute one step, as a builder does."""
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
            raise AssertionError(f"unknown step {name}")


@pytest.fixture(scope="module")
def image(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    assert CONTEXT.is_dir(), f"{CONTEXT} does not exist: `make dist` makes it next to {package.name}"
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


def test_volume_belongs_to_user_of_image(image: Image) -> None:
    assert image.user == "7668:7668"
    for volume in image.volumes:
        assert image.machine.run("stat", "-c", "%u:%g %a", volume).stdout.strip() == "7668:7668 700"


def test_image_lacks_keys_and_package_lists(image: Image) -> None:
    assert [path.name for path in (image.machine.root / "etc/garlicfarm").iterdir()] == ["node.toml"]
    assert not list((image.machine.root / "var/lib/apt/lists").iterdir())
    assert not (image.machine.root / "tmp/garlicfarm.deb").exists()


def test_started_image_publishes_and_passes_health_check(image: Image) -> None:
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

    def is_healthy() -> bool:
        check = image.as_user(["sh", "-c", image.check])
        return machine.run(*check, environment=image.environment, check=False).returncode == 0

    assert not is_healthy()
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
        assert is_healthy()
        os.kill(child_of(node.pid), signal.SIGTERM)
        assert node.wait(END_BOUND_S) == 0
        assert not is_healthy()
    finally:
        if node.poll() is None:
            os.kill(child_of(node.pid), signal.SIGKILL)
            node.wait(END_BOUND_S)
        print((machine.root / "srv/node.log").read_text())  # noqa: T201 - shown if the test fails
