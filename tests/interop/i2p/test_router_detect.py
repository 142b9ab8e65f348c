"""`router detect` with a real i2pd and the configuration of Debian's package switches the services on.

i2pd as installed, one tunnel ─▶ detect: lines in i2pd.conf ─▶ i2pd started again ─▶ detect: a replying router
"""

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.end_to_end.farm import command, tail, wait_until
from tests.interop.i2p import namespace
from tests.interop.i2p.namespace import I2PD, ClientNamespace, library_path
from tests.interop.i2p.router import NETWORK_ID
from tests.processes import END_S

pytestmark = pytest.mark.interop
START_S: Final = 60.0
DEBIAN_CONF: Final = I2PD.parents[2] / "etc" / "i2pd" / "i2pd.conf"
TUNNEL: Final = "[web]\ntype = http\nhost = 127.0.0.1\nport = 8080\nkeys = web.dat\n"
ALONE: Final = ("--reseed.threshold=0", "--nettime.enabled=false", "--upnp.enabled=false", "--http.enabled=false")


class LoneI2pd:
    """An i2pd with the configuration of Debian's package and one tunnel.

    Its namespace does not have the routers of the closed network: the command would attach one of them.
    """

    def __init__(self, directory: Path, space: ClientNamespace) -> None:
        self.directory = directory
        self.space = space
        self.conf = directory / "i2pd.conf"
        self.log = directory / "log"
        self.process: subprocess.Popen[bytes] | None = None
        (directory / "certs").mkdir(parents=True)
        self.conf.write_bytes(DEBIAN_CONF.read_bytes())
        (directory / "tunnels.conf").write_text(TUNNEL)

    def start(self) -> None:
        """Start it, and return when SAM listens, which it starts last of the services that are on by default."""
        at = self.directory
        program = [str(I2PD), f"--datadir={at}", f"--certsdir={at}/certs", f"--conf={self.conf}", "--log=file"]
        program += [f"--logfile={self.log}", "--loglevel=info", f"--netid={NETWORK_ID}", *ALONE]
        self.log.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            self.space.inside(program),
            env={**os.environ, "LD_LIBRARY_PATH": library_path()},
            cwd=at,
            stdin=subprocess.DEVNULL,
        )
        wait_until(lambda: self._state("sam") == "on" or None, START_S, "i2pd listens", lambda: tail(self.log))

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(END_S)

    def _state(self, service: str) -> str:
        found = self.detect()["routers"]
        return str(found[0][service]["state"]) if found else ""

    def detect(self, *arguments: str | Path) -> dict[str, Any]:
        """Return the JSON of the command."""
        done = subprocess.run(
            self.space.inside(command("router", "detect", "--json", *arguments)),
            stdout=subprocess.PIPE,
            timeout=END_S,
            check=False,
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture
def router(tmp_path: Path) -> Iterator[LoneI2pd]:
    reason = namespace.missing() or namespace.outside()
    if reason is not None:
        pytest.skip(reason)
    with namespace.network_namespace() as space:
        made = LoneI2pd(tmp_path / "i2pd", space)
        try:
            made.start()
            yield made
        finally:
            made.stop()


def test_changes_of_the_command_attach_real_i2pd(router: LoneI2pd, tmp_path: Path) -> None:
    node = tmp_path / "node.toml"
    node.write_text('# mine\nname = "site-a"\n')
    first = router.detect("--config", node, "--yes")
    found = first["routers"][0]  # The list continues with installed routers that do not run
    assert (found["pid"], first["written"]) == (router.process and router.process.pid, True)
    own = re.search(r"web\.dat for (\S+) created", router.log.read_text())
    assert own is not None, tail(router.log)
    assert found["tunnels"][0]["address"] == own[1]

    assert Path(f"{router.conf}.before-garlicfarm").read_bytes() == DEBIAN_CONF.read_bytes()
    assert [found[each]["state"] for each in ("i2cp", "i2pcontrol", "sam")] == ["not listening", "not listening", "on"]
    router.stop()
    router.start()
    second = router.detect("--config", node, "--yes")
    results = {each["name"]: each["result"] for each in second["checks"]}
    assert {results[each] for each in ("router", "router status", "router sam")} == {"ok"}
    written = node.read_text()
    assert written.startswith('# mine\nname = "site-a"\n')
    table = tomllib.loads(written)
    assert (table["router"]["i2cp"], table["router"]["i2pcontrol"]) == ("127.0.0.1:7654", "https://127.0.0.1:7650")
    assert table["leaf"] == [{"destination": found["tunnels"][0]["destination"], "probe": "127.0.0.1:8080"}]
    assert f"password = {(tmp_path / 'i2pcontrol.password').read_text()}" in router.conf.read_text()
