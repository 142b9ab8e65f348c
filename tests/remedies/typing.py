"""The words of commands that a test runs, from its own source, not from its whole file.

    its function and decorators    string constants, split at spaces; no docstrings, and no text expected in an output
    names of its module            fixtures, helpers and methods that it uses, and the names that those use
    `invoke(command, …)`           the name of the command

A word elsewhere in the test folder does not count: another test runs it.
"""

import ast
from collections.abc import Iterator
from functools import cache

from tests.remedies.collect import ROOT

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def functions_of(source: str) -> dict[str, list[Function]]:
    """Return the functions by name; a helper and a method may have the same name."""
    found = dict[str, list[Function]]()
    for each in ast.walk(ast.parse(source)):
        if isinstance(each, Function):
            found.setdefault(each.name, []).append(each)
    return found


def words_typed(source: str, name: str) -> set[str]:
    """Return the words that the test `name` runs; an empty set without such a test."""
    functions = functions_of(source)
    found, todo, done = set[str](), [name] * (name in functions), {name}
    while todo:
        for function in functions[todo.pop()]:
            found.update(_words(function))
            named = {*_named(function)} & functions.keys() - done
            todo += sorted(named)
            done |= named
    return found


def fault_of_case(key: str, case: str) -> str | None:
    """Return the reason why the case does not prove that the command is run, or None."""
    file, _, name = case.partition("::")
    if not name.startswith("test_") or not (ROOT / file).is_file():
        return f"{key}: {case} is no test"
    missing = {*key.split()} - words_typed((ROOT / file).read_text(encoding="utf-8"), name)
    return f"{key}: {case} does not type {' '.join(sorted(missing))}" if missing else None


def _named(function: Function) -> Iterator[str]:
    yield from (each.arg for each in function.args.args + function.args.kwonlyargs)
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value  # `usefixtures`


def _words(function: Function) -> Iterator[str]:
    looked_for = {
        id(node.left)
        for node in ast.walk(function)
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn)
    }
    texts = {id(node.value) for node in ast.walk(function) if isinstance(node, ast.Expr)}
    for node in ast.walk(function):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in looked_for | texts:
                yield from text.split()
            case ast.Call(func=ast.Attribute(attr="invoke"), args=[ast.Name(id=command), *_]):
                yield command.replace("_", "-")
            case _:
                pass
