"""docs/reference/events.md: the kinds of events and their sentences, generated from `bridge.api.events`."""

from collections.abc import Iterable, Iterator, Mapping

from bridge.api.events import OF_THE_FARM, SENTENCES, is_warning
from bridge.api.trace import Scalar, TraceEvent

HEAD = """# Events

Each node keeps its latest events and writes them to its log. `garlicfarm events` and `top` show them, and
`GET /v1/events` returns them as JSON ([control-endpoint.md](control-endpoint.md)). An event has a kind, the facts as
key and value, and a sentence.

In the sentences below, the key of a fact represents its value, and every optional part is present. An event of an
unlisted kind is printed with its facts. The mark `!` shows a warning: an action failed or was refused, or an alarm was
raised. The node's log has it with the level WARNING. `verdict-changed` is a warning unless the verdict is `ok`.
"""
FARM = """
## About the farm

All nodes report these alike, so several nodes' reports within 15 s are shown once.

| kind | | sentence |
|---|---|---|
"""
NODE = """
## About the node that reports them

| kind | | sentence |
|---|---|---|
"""


class _Placeholders(Mapping[str, Scalar]):
    """Facts with their names as values, so a sentence shows the place of each fact."""

    def __getitem__(self, key: str) -> Scalar:
        return "promote" if key == "step" else f"`{key}`"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def page() -> str:
    of_node = [kind for kind in SENTENCES if kind not in OF_THE_FARM]
    return HEAD + FARM + _rows(OF_THE_FARM) + NODE + _rows(of_node)


def _rows(kinds: Iterable[str]) -> str:
    return "".join(map(_row, sorted(kinds)))


def _row(kind: str) -> str:
    sentence = SENTENCES[kind]("`node`", _Placeholders())
    event = TraceEvent(1, 0, None, kind, "node")
    return f"| `{kind}` | {'!' if is_warning(event) else ''} | {sentence} |\n"
