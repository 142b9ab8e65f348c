"""A thread writes the lines of a log: a stopped reader does not delay a caller, and lost lines are counted."""

import io
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import pytest

from bridge.cli.node_log import NodeLog
from bridge.cli.serving.line_writer import LineWriter, lost_lines

LINE = "x" * 100


@pytest.fixture
def full_pipe() -> tuple[int, TextIO]:
    """Fill a pipe; return the descriptor of its reader, and the stream of its writer."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4_096))
    os.set_blocking(writer, True)
    return reader, os.fdopen(writer, "w", encoding="utf-8")


def test_lines_are_written_in_order(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w", encoding="utf-8") as stream:
        writer = LineWriter(stream)
        for number in range(100):
            writer.write(f"line {number}")
        assert writer.close(10)
    assert (tmp_path / "log").read_text().splitlines() == [f"line {number}" for number in range(100)]


def test_full_pipe_drops_and_counts_lines_without_delay(full_pipe: tuple[int, TextIO]) -> None:
    reader, stream = full_pipe
    writer = LineWriter(stream, waiting_bytes=10_000)
    written = threading.Event()

    def write() -> None:
        for _ in range(5_000):
            writer.write(LINE)
        written.set()

    threading.Thread(target=write, daemon=True).start()
    assert written.wait(60), "a writer waited for the reader of the pipe"
    assert not writer.close(0.01)
    dropped = writer.dropped
    assert dropped > 3_000
    text = b""
    while lost_lines(dropped).encode() not in text:
        text += os.read(reader, 65_536)
    while not text.endswith(b"x\n") or text.count(LINE.encode()) + dropped < 5_000:
        text += os.read(reader, 65_536)
    assert text.count(LINE.encode()) + dropped == 5_000
    assert writer.close(10)


@pytest.mark.parametrize("stream", [None, io.StringIO()])
def test_missing_or_closed_stream_is_ignored(stream: TextIO | None) -> None:
    if stream is not None:
        stream.close()
    writer = LineWriter(stream)
    writer.write("lost")
    assert writer.close(10)


def test_node_log_ends_with_full_pipe(full_pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch) -> None:
    _, stream = full_pipe
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr("logging.root.handlers", [])
    log = NodeLog(None, None)
    ended: list[int] = []

    def fail() -> None:
        try:
            log.fail("its disk is gone")
        except SystemExit as error:
            ended.append(int(str(error.code)))

    thread = threading.Thread(target=fail, daemon=True)
    thread.start()
    thread.join(60)
    assert ended == [1]
