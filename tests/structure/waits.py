"""Waits of tests for a process, a thread or an event have a limit.

The limit of a test interrupts it once. Waits of its fixtures after that need separate limits, or the worker hangs:
`with Popen(…)` and `process.wait()` wait for a child that may ignore its signal (tests/processes.py).
"""

import ast
import re
from collections.abc import Iterator

from tests.structure.sources import modules_in, nodes_of, problem, text_of

WAITS = re.compile(r"Popen\(|\.(wait|join|communicate)\(")
"""Only modules with one of these names are parsed."""


def unbounded(nodes: Iterator[ast.AST] | tuple[ast.AST, ...]) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each wait without a limit."""
    awaited, statements, calls = set(), set(), []
    for node in nodes:
        match node:
            case ast.Await(value=call):
                awaited.add(id(call))
            case ast.Expr(value=call):
                statements.add(id(call))
            case ast.withitem(context_expr=ast.Call(func=function) as call) if _is_popen(function):
                yield call.lineno, "with Popen(…)"
            case ast.Call(func=ast.Attribute(attr="enter_context"), args=[ast.Call(func=function)]) if _is_popen(
                function
            ):
                yield node.lineno, "enter_context(Popen(…))"
            case ast.Call(func=ast.Attribute(attr="wait" | "join" | "communicate")):
                calls.append(node)
            case _:
                pass
    for call in calls:
        assert isinstance(call.func, ast.Attribute)
        method = call.func.attr
        keywords = [each.arg for each in call.keywords if method != "communicate" or each.arg == "timeout"]
        has_limit = len(call.args) > (method == "communicate") or bool(keywords)
        # `sender.join()` with a result is a message of gossip; the join of a thread does not return a value.
        if not has_limit and id(call) not in awaited and (method != "join" or id(call) in statements):
            yield call.lineno, ast.unparse(call)


def _is_popen(function: ast.expr) -> bool:
    return ast.unparse(function).endswith("Popen")


def check() -> Iterator[str]:
    """Yield the waits of tests without a limit."""
    for path in modules_in("tests"):
        if not WAITS.search(text_of(path)):
            continue
        for line, text in unbounded(nodes_of(path)):
            yield problem(path, line, f"a wait without a limit: {text}; tests/processes.py has END_S and child()")
