"""Each path in a printed command is quoted, so that the command works in a shell for every path."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
OPTIONS = "state-dir|config|output|replace|node|farm-key|master"
COMMAND = rf"(?:recover --from|config import|--(?:{OPTIONS})|\bchmod [-+\w]+|\bchown \S+|`mv|`rm)"
PATH = re.compile(rf"{COMMAND} \0([^\0]*)\0")


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield each text with values; each value is its expression between zero bytes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                f"\0{ast.unparse(each.value)}\0" if isinstance(each, ast.FormattedValue) else ast.literal_eval(each)
                for each in node.values
            )


def test_paths_in_printed_commands_are_quoted() -> None:
    plain, count = [], 0
    for package in ("bridge", "consensus", "gossip", "pipeline"):
        for file in sorted((ROOT / package).rglob("*.py")):
            source = file.read_text(encoding="utf-8")
            if re.search(COMMAND, source) is None:
                continue
            quoted = set(re.findall(r"\b(\w+) = shlex\.quote", source))
            for text in texts(ast.parse(source)):
                for value in PATH.findall(text):
                    count += 1
                    if "shlex.quote(" not in value and value not in quoted:
                        plain.append(f"{file.relative_to(ROOT)}: {text!r}")
    assert plain == []
    assert count > 10
