"""Upgrades of the Debian package on three machines: from the build of an older commit, all stopped or one by one.

    older commit ──▶ a worktree ──▶ its wheel ──▶ its package, with a lower version ──▶ a farm that publishes
    package of `make dist` ──▶ apt-get install ──▶ the same identities, the same farm, a later structure

The services run without systemd; the postinst of the package does not restart them there. `test_systemd` has a restart.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deploy import deb
from deploy.environment import ROOT, supported_target
from tests.packages.service import READY_BOUND_S, Service
from tests.packages.test_three_machines import NODES, Node, Site, site_with, start, until, wait_for_verdict
from tests.soak.upgrade import build_commit

pytestmark = pytest.mark.packages

UPGRADE_FROM = "3169d6ec"
"""A commit of 27 November 2026."""
OLD_VERSION = "0.0.9-1"
HEALTHY = "Healthy, can lose 1 of 3"


@pytest.fixture(scope="module")
def old_package(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a package of the older commit with this tree's packaging, and with a version that dpkg upgrades."""
    known = ["git", "-C", str(ROOT), "cat-file", "-e", UPGRADE_FROM]
    if subprocess.run(known, check=False).returncode != 0:
        pytest.skip(f"needs a clone of the repository with the commit {UPGRADE_FROM}")
    scratch = tmp_path_factory.mktemp("old")
    root, made = scratch / "root", scratch / "garlicfarm-old.deb"
    wheels = build_commit(UPGRADE_FROM).parent / "wheel"
    architecture = package.stem.rpartition("_")[2]
    built = deb.build(supported_target("3.11", architecture), wheels)
    subprocess.run(["dpkg-deb", "--raw-extract", built, root], check=True)  # noqa: S607 - found on the path
    control = root / "DEBIAN/control"
    control.write_text(re.sub(r"(?m)^Version: .*$", f"Version: {OLD_VERSION}", control.read_text()))
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", root, made], check=True)  # noqa: S607
    shutil.rmtree(root)
    return made


@pytest.fixture
def farm(old_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, list[Service]]]:
    """Yield machines with a healthy farm of the older build, which has published all leaves."""
    with ExitStack() as stack:
        site = stack.enter_context(site_with(old_package, tmp_path_factory))
        for number, node in enumerate(site.nodes, start=1):
            node.reset(f"node-{number}", site.farm_key)
        services = start(stack, site.nodes)
        wait_for_verdict(site.nodes, HEALTHY)
        until(lambda: publication(site) is not None, "the older build publishes all leaves")
        assert {version(node) for node in site.nodes} == {OLD_VERSION}
        yield site, services


def version(node: Node) -> str:
    return node.machine.run("dpkg-query", "--show", "--showformat=${Version}", "garlicfarm").stdout


def publication(site: Site) -> int | None:
    """Return the second of the last structure with all leaves; None without one."""
    found = [each for node in site.nodes if (each := node.published()) is not None and len(each.entries) == NODES]
    return max((each.published_s for each in found), default=None)


def identity(view: dict[str, Any]) -> tuple[object, ...]:
    """Return what an upgrade must not change."""
    return view["node"]["nodeId"], view["node"]["name"], view["farm"]["clusterId"]


def upgraded(stack: ExitStack, node: Node, package: Path) -> Service:
    """Install the package on a machine with a stopped node, and start the node."""
    node.machine.upgrade(package)
    assert version(node) != OLD_VERSION
    service = stack.enter_context(Service(node.machine))
    service.wait_for_notification("READY=1", READY_BOUND_S)
    return service


def test_upgrade_of_all_stopped_nodes_keeps_the_farm(farm: tuple[Site, list[Service]], package: Path) -> None:
    site, services = farm
    before = [identity(node.view()) for node in site.nodes]
    published_s = publication(site)
    assert published_s is not None
    assert [service.stop() for service in services] == [0] * NODES
    with ExitStack() as stack:
        for node in site.nodes:
            upgraded(stack, node, package)
        wait_for_verdict(site.nodes, HEALTHY)
        assert [identity(node.view()) for node in site.nodes] == before
        until(lambda: (publication(site) or 0) > published_s, "the new build publishes later")


def test_rolling_upgrade_keeps_a_quorum_and_publishes(farm: tuple[Site, list[Service]], package: Path) -> None:
    site, services = farm
    before = [identity(node.view()) for node in site.nodes]
    published_s = publication(site)
    assert published_s is not None
    with ExitStack() as stack:
        for node, service in zip(site.nodes, services, strict=True):
            assert service.stop() == 0
            others = [each for each in site.nodes if each is not node]
            until(partial(all_have_leader, others), "the others have a leader")
            upgraded(stack, node, package)
            wait_for_verdict(site.nodes, HEALTHY)
        assert [identity(node.view()) for node in site.nodes] == before
        until(lambda: (publication(site) or 0) > published_s, "the new build publishes later")


def all_have_leader(nodes: list[Node]) -> bool:
    views = [node.view() for node in nodes]
    return all(view and view["raft"]["leaderId"] is not None for view in views)
