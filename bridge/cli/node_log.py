"""The log of `garlicfarm run` on stderr: one record on each line, as text for people or as JSON for programs.

    2026-11-25T14:16:57.874Z info    garlicfarm: leader-elected: node-1 leads in term 3
    {"time":"2026-11-25T14:16:57.874Z","level":"info","node":"node-1","event":"leader-elected",
     "text":"node-1 leads in term 3","fields":{"term":3}}              (on one line)

An event of a node's trace is a record with the event's kind and facts. Any other log record, such as a library's
warning or a fault of the program with its traceback, is the event `message`. Its fields name the logger. JSON contains
escapes for everything beyond ASCII, so that a line has the same bytes in every locale. The reason why a node ends is
its last record, in either form.

In each period a limited number of lines of one cause is logged, and then the number of omitted lines (`RepeatLimit`). A
thread writes the lines, so a reader that stops reading stderr does not stop the node (`serving.line_writer`).
"""

import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NoReturn

from bridge.api.json import encode
from bridge.api.printable import wrapped
from bridge.api.trace import LogLine, TraceEvent
from bridge.cli.failure import REFUSED, failure_lines
from bridge.cli.printing import PrintableFormatter, RepeatLimit, ascii_json, terminal_columns
from bridge.cli.serving.line_writer import LineWriter, lost_lines
from bridge.node.settings.choices import LogFormat, LogLevel

LOG = logging.getLogger(__name__)
TEXT: Final = "%(asctime)s %(word)-7s %(name)s: %(message)s"
MESSAGE: Final = "message"
ENDED: Final = "node-ended"
_LEVELS: Final[Mapping[LogLevel, int]] = {
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
}


class TextFormatter(PrintableFormatter):
    """A record as a line for people, with the same time and level as in JSON."""

    def __init__(self) -> None:
        super().__init__(TEXT)

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, and the marked lines of a traceback."""
        record.word = _word(record.levelno)
        return super().format(record)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802 - its base's
        """Return UTC, so that the lines of nodes in different time zones can be compared."""
        return _moment(record)


class JsonFormatter(logging.Formatter):
    """A record as an object of JSON (`LogLine`)."""

    def __init__(self, node: str) -> None:
        """Create a formatter. `node` is the name in records without an event; empty before the name is known."""
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        event, text = getattr(record, "event", None), record.getMessage()
        if isinstance(event, TraceEvent):
            line = self._line(record, event.node, event.kind, text.removeprefix(event.kind).removeprefix(": "))
            line.fields.update(event.data)
        else:
            line = self._line(record, self._node, event or MESSAGE, text)
            line.fields["logger"] = record.name
        if record.exc_info:
            line.fields["traceback"] = self.formatException(record.exc_info)
        return ascii_json(encode(line).decode())

    def _line(self, record: logging.LogRecord, node: str, event: str, text: str) -> LogLine:
        return LogLine(
            time=_moment(record),
            level=_word(record.levelno),
            node=node,
            event=event,
            text=text,
            fields={},
        )


class WriterHandler(logging.Handler):
    """Formats records, and passes them to a line writer."""

    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        """Pass the formatted record to the writer; never wait."""
        try:
            self._writer.write(self.format(record))
        except Exception:  # noqa: BLE001 - as in every handler: a record that cannot be formatted does not end the process
            self.handleError(record)


class NodeLog:
    """The log output of this process.

    Until the settings are read, only the options of the command line determine its form.
    """

    def __init__(self, log_format: LogFormat | None, level: LogLevel | None) -> None:
        self._writer = LineWriter(sys.stderr, self._lost)
        self._output = WriterHandler(self._writer)
        self._output.addFilter(RepeatLimit())
        self._is_json = False
        logging.basicConfig(handlers=[self._output])
        self.use(log_format or LogFormat.TEXT, level or LogLevel.INFO)

    def use(self, log_format: LogFormat, level: LogLevel, node: str = "") -> None:
        """Set the format, the level and the name of the node."""
        self._is_json = log_format is LogFormat.JSON
        self._output.setFormatter(JsonFormatter(node) if self._is_json else TextFormatter())
        logging.getLogger().setLevel(_LEVELS[level])
        logging.captureWarnings(self._is_json)

    def fail(self, reason: str) -> NoReturn:
        """End with exit code 1, and the reason as the last record."""
        self.log_end(reason)
        sys.exit(REFUSED)

    def log_end(self, reason: str) -> None:
        """Log the reason why the process ends, and wait a moment until the reader has taken it."""
        if self._is_json:
            LOG.critical("%s", reason, extra={"event": ENDED})
        else:
            columns = terminal_columns() if sys.stderr.isatty() else sys.maxsize
            for line in failure_lines(reason):
                self._writer.write("\n".join(wrapped(line, columns)))
        self.close()

    def close(self) -> None:
        """Wait a short time until the logged lines are written."""
        self._writer.close()

    def _lost(self, count: int) -> str:
        name, text = LOG.name, lost_lines(count)
        return self._output.format(logging.LogRecord(name, logging.WARNING, __file__, 0, text, None, None))


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _word(level: int) -> str:
    found = [word for word, least in _LEVELS.items() if level >= least]
    return found[-1].value if found else LogLevel.INFO.value
