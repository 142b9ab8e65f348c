"""docs/how-to/prometheus-and-grafana.md: a Prometheus set up with its commands scrapes real nodes and fills the panels.

The commands of the page run with this test's paths instead of /etc, on loopback. The test uses an installed Prometheus.
Without one, it only compares the served metrics with the metrics of dashboard and alerts.
"""

import http
import json
import os
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge.api.view import VerdictKind
from tests.end_to_end.farm import START_BOUND_S, Farm, Node, tail, wait_until
from tests.end_to_end.settings import LOOPBACK, broadcast_farm, free_port
from tests.packages import monitoring
from tests.structure.sources import ROOT

PAGE = ROOT / "docs" / "how-to" / "prometheus-and-grafana.md"
SHARED = ROOT / "deploy"
SCRAPED_BOUND_S = 60.0


@pytest.fixture(scope="module")
def watched_farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Farm, list[str]]]:
    """Start two nodes with the settings of the page and both client listeners; yield the farm and their endpoints."""
    directory = tmp_path_factory.mktemp("watched") / "farm"
    port = free_port(socket.SOCK_DGRAM)
    farm = broadcast_farm(directory, [f"127.77.0.{number}" for number in (1, 2)], port, port)
    ports = [free_port(socket.SOCK_STREAM) for _ in range(6)]
    addresses = [f"{LOOPBACK}:{each}" for each in ports[:2]]
    (setting,) = re.findall(r"^   ```toml\n(.*?)^   ```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert '"192.168.7.5:7650"' in setting
    with farm:
        for number, node in enumerate(farm.nodes):
            node.directory.chmod(0o700)
            control = re.sub(r"^   ", "", setting, flags=re.MULTILINE).replace("192.168.7.5:7650", addresses[number])
            kafka = f'[kafka]\nlisten = "{LOOPBACK}:{ports[2 + number]}"\n'
            zmq = f'[zmq]\nlisten = "tcp://{LOOPBACK}:{ports[4 + number]}"\nident = "watched"\n'
            node.configuration.write_text(f"{node.configuration.read_text()}{control}{kafka}{zmq}")
        first, second = farm.nodes
        first.start()
        farm.wait_until(
            (first.directory / "control.read.token").exists, START_BOUND_S, "the first node creates a token"
        )
        # "Copy the token of one node over that of the others" before they start, which avoids a restart.
        shutil.copy2(first.directory / "control.read.token", second.directory)
        second.start()
        farm.wait_settled()
        farm.wait_until(
            lambda: all(map(publishes, farm.nodes)), START_BOUND_S, "all nodes have a structure in their views"
        )
        yield farm, addresses


def publishes(node: Node) -> bool:
    """Return True if a structure is published in the node's view."""
    return any(each.seconds_to_expiry is not None for each in node.view().publishing)


def test_nodes_serve_all_metrics_of_dashboard_and_alerts(watched_farm: tuple[Farm, list[str]]) -> None:
    farm, _ = watched_farm
    exposition = "".join(node.ask(lambda client: client.metrics()) for node in farm.nodes)
    # A healthy farm does not have an alarm, so the label `kind` is added by hand.
    exposition += 'garlicfarm_alarms{kind="made-up"} 1.0\n'
    assert monitoring.missing_metrics(exposition) == []


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no Prometheus (Debian: apt-get install prometheus)")
def test_prometheus_of_page_fills_all_panels(watched_farm: tuple[Farm, list[str]], tmp_path: Path) -> None:
    farm, addresses = watched_farm
    set_up(tmp_path, farm, addresses)
    with prometheus(tmp_path) as address:

        def all_nodes_up() -> bool:
            shown = query(address, 'up{job="garlicfarm"} == 1')
            return {each["metric"]["instance"] for each in shown} == set(addresses)

        log = tmp_path / "prometheus.log"
        wait_until(all_nodes_up, SCRAPED_BOUND_S, "both nodes are scraped", lambda: tail(log))
        (healthy,) = query(address, 'max by (kind) (garlicfarm_verdict{job="garlicfarm"}) == 1')
        assert healthy["metric"]["kind"] == VerdictKind.HEALTHY.value

        def only_alarms_are_empty() -> bool:
            return [each["title"] for each in monitoring.panels() if not any(panel_results(address, each))] == [
                "Alarms"
            ]

        # Rates need two scrapes.
        wait_until(only_alarms_are_empty, SCRAPED_BOUND_S, "all other panels have data", lambda: tail(log))
        rules = api_data(address, "rules")["groups"]
        health = {rule["name"]: (rule["health"], rule["state"]) for group in rules for rule in group["rules"]}
        shipped = [*monitoring.alerts(), *monitoring.alerts(monitoring.PIPELINE_RULES)]
        assert health.keys() == {each.name for each in shipped}
        assert {each for each, _ in health.values()} <= {"ok", "unknown"}
        links = [rule["annotations"]["runbook_url"] for group in rules for rule in group["rules"]]
        assert all(link.startswith("https://docs.example.org/") for link in links)


def set_up(directory: Path, farm: Farm, addresses: list[str]) -> None:
    """Run the commands of the page for the machine of Prometheus."""
    for number, node in enumerate([*farm.nodes, farm.nodes[0]], start=1):
        shutil.copy(node.directory / "control.crt", directory / f"node-{number}.crt")
    shutil.copy(farm.nodes[0].directory / "control.read.token", directory)
    (directory / "etc").mkdir()
    commands = "".join(re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    own = {
        "-o prometheus -g prometheus ": "",
        '"10.0.0.5:7650", "10.0.0.6:7650"': ", ".join(f'"{each}"' for each in addresses),
        "/etc/prometheus": str(directory / "etc"),
        "/usr/share/garlicfarm": str(SHARED),
    }
    for line in commands.splitlines():
        if line.startswith("systemctl"):
            continue
        for theirs, ours in own.items():
            line = line.replace(theirs, ours)  # noqa: PLW2901 - the same line, with other paths
        if line.startswith("promtool"):
            adapt_configuration(directory / "etc" / "prometheus.yml")
        done = subprocess.run(["sh", "-c", line], cwd=directory, capture_output=True, text=True, check=False)  # noqa: S607
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def adapt_configuration(configuration: Path) -> None:
    """Set this test's paths in the configuration, and a scrape per second."""
    text = configuration.read_text().replace("/etc/prometheus", str(configuration.parent))
    text = text.replace("/usr/share/garlicfarm", str(SHARED)).replace("interval: 15s", "interval: 1s")
    configuration.write_text(text)


@contextmanager
def prometheus(directory: Path) -> Iterator[str]:
    """Run Prometheus until the block ends; yield its address."""
    listen = f"{LOOPBACK}:{free_port(socket.SOCK_STREAM)}"
    options = [f"--config.file={directory}/etc/prometheus.yml", f"--storage.tsdb.path={directory}/data"]
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            ["prometheus", *options, f"--web.listen-address={listen}"],  # noqa: S607
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "GOMAXPROCS": "1"},
        )
        try:
            yield f"http://{listen}"
        finally:
            process.terminate()
            process.wait(START_BOUND_S)


def panel_results(address: str, panel: dict[str, Any]) -> list[bool]:
    """Return for each query of a panel whether it has a result. Prometheus must accept each query."""
    variables = {"$job": "garlicfarm", "$instance": ".*", "$__rate_interval": "1m", "$__range": "1h"}
    expressions = [target["expr"] for target in panel["targets"]]
    for variable, value in variables.items():
        expressions = [each.replace(variable, value) for each in expressions]
    return [bool(query(address, each)) for each in expressions]


def query(address: str, expression: str) -> list[dict[str, Any]]:
    """Return the current series of an expression; an empty list while Prometheus starts or reads its files."""
    try:
        found: list[dict[str, Any]] = api_data(address, f"query?{urllib.parse.urlencode({'query': expression})}")[
            "result"
        ]
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.SERVICE_UNAVAILABLE:
            raise AssertionError(f"{expression}: {error.read().decode()}") from None
        return []
    except urllib.error.URLError:
        return []
    return found


def api_data(address: str, target: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{address}/api/v1/{target}", timeout=60) as reply:  # noqa: S310 - http on loopback
        data: dict[str, Any] = json.load(reply)["data"]
    return data
