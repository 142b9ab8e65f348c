"""Places of the log: the command line rejects options of two different places before it reads anything."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.cli.commands import run


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--node", "a.sock", "--directory", "."], "--node and --directory are different places: choose one"),
        (["--node", "a.sock", "--kafka", "127.0.0.1:9092"], "--node and --kafka are different places"),
        (["--kafka", "127.0.0.1:9092", "--committed-through", "5"], "--committed-through belongs to --directory"),
        (["--node", "a.sock", "--kafka-option", "subscribe=log"], "--kafka-option belongs to --kafka"),
        (["--committed-through", "5"], "--committed-through belongs to --directory, and the log is read with --node"),
        (["--directory", ".", "--token-file", "farms.toml"], "--token-file belongs to --node"),
        (["--farms", "farms.toml", "--token-file", "farms.toml"], "set the options of each farm in farms.toml"),
    ],
)
def test_options_of_two_places_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "farms.toml").touch()
    result = CliRunner().invoke(run, options)
    assert result.exit_code == 2
    assert reason in " ".join(result.output.split())
