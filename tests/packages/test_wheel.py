"""The wheels of dist/ contain the documents that an installation without a checkout needs, under all cited names."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from bridge.cli.help import documents
from deploy.environment import ROOT

pytestmark = pytest.mark.packages

SHOW_TOPICS = """\
import sys
from pathlib import Path

import bridge
from bridge.cli.help import documents
from bridge.cli.main import cli

assert Path(bridge.__file__).is_relative_to(sys.argv[1]), bridge.__file__
assert (bridge.DOCUMENTS[0] / "README.md").is_file()
for topic in sys.argv[2:]:
    cli(["help", topic], standalone_mode=False)
"""
CITED = re.compile(r"garlicfarm help ([a-z][a-z/-]+)")
CITING = ("bridge", "pipeline", "deploy")
"""Folders whose messages, scripts and settings name topics."""


def cited_topics() -> set[str]:
    """Return all topics named by the texts of an installation."""
    files = [path for folder in CITING for path in (ROOT / folder).rglob("*") if path.is_file()]
    texts = [path.read_text(encoding="utf-8") for path in files if path.suffix not in {".pyc", ".json"}]
    # troff writes a hyphen as `\\-`.
    return {topic for text in texts for topic in CITED.findall(text.replace(r"\-", "-"))}


def test_wheels_contain_documents_and_cited_topics(tmp_path: Path) -> None:
    wheels = sorted((ROOT / "dist").glob("garlicfarm-*.whl"))
    assert wheels, "dist/ lacks a wheel: `make dist` builds it"
    places = [topic.place for topic in documents.topics()]
    assert {"install", "servers"} <= cited_topics()
    for wheel in wheels:
        unpacked = tmp_path / wheel.stem
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
        environment = {"PYTHONPATH": str(unpacked), "PYTHONSAFEPATH": "1", "LANG": "C.UTF-8"}
        command = [sys.executable, "-c", SHOW_TOPICS, str(unpacked), *places, *sorted(cited_topics())]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
        assert done.returncode == 0, f"{wheel.name}: {done.stderr}"
        assert "Install a node" in done.stdout
