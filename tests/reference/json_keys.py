"""docs/reference/json.md: the keys of every JSON document of a node, generated from the types of the documents."""

import ast
import inspect
import sys
from collections.abc import Iterator
from enum import Enum
from functools import cache
from itertools import pairwise
from types import ModuleType

import msgspec
from msgspec import NODEFAULT, Struct, UnsetType
from msgspec import inspect as kinds

from bridge.api import cluster_outputs, control, debug, lease_set_report, log, outputs, requests, trace, view
from bridge.api.json import Document, Record, RequestBody
from bridge.api.observations import history, perspectives
from bridge.connect import client_status
from bridge.connect import status as farm_status
from bridge.core.log.figures import FIGURES
from bridge.node.zmq import log_snapshot

HEAD = """# JSON that scripts may rely on

Commands that print facts accept `--json`; the [control endpoint](control-endpoint.md) returns the same documents. A
document has `schema`, now 1; only an incompatible change raises it. Ignore unknown keys. An unknown value is `null`,
never an estimate. The end of a key names its unit: `Ms` milliseconds, `S` seconds. Points in time count from the Unix
epoch, by the node's own clock in `takenAtMs` and `timeMs`, by log time in `logTimeMs`. NodeIds, hashes, labels and the
ids of keys and of a farm's cluster are hexadecimal. [Commands](commands.md) has the exit codes. If a command is
refused or fails, it prints one line with the reason on stderr.

| command with `--json` | document |
|---|---|
"""
PASSED_ON = {
    "`status`": "FarmView",
    "`history`": "HistoryAnswer",
    "`members --all-nodes`": "PerspectivesAnswer",
    "`log`": "LogPage",
    "`log --watch`, one document on each line": "LogEntryView",
    "`log-time show`": "LogTimeAnswer",
    "`submit`; the exit code is 0 only for `committed` with an empty `reason`": "SubmitAnswer",
    "`publish …`, `servers remove`, `servers restore`, `log-time back`": "CommandAnswer",
    "`node admit-client`, `node remove-client`": "CommandAnswer",
    "`node list`": "NodesAnswer",
    "`node approve`": "NodeApproved",
    "`node evict`": "NodeEvicted",
    "`keys list`": "KeysAnswer",
    "`keys install`, `keys use`, `keys remove`": "KeyAnswer",
    "`keys replace`": "KeysReplaced",
    "`transfer`": "LeaderAnswer",
    "`debug`": "DebugOutput",
    "`lease-set show`, one document for each file": "LeaseSetReport",
    "`connect --status`, from the client's socket": "ClientStatus",
}
"""Commands that print a reply of the control endpoint unchanged; others are in `outputs` and `cluster_outputs`."""
CHAPTERS = (
    ("The view", view, Record),
    ("Output of commands", outputs, Record),
    ("Output of commands for other clusters", cluster_outputs, Record),
    ("Replies of the control endpoint", control, Record),
    ("The history, and the perspectives of the nodes", history, Record),
    ("", perspectives, Record),
    ("The log and the trace", log, Record),
    ("", trace, Record),
    ("Fault analysis", debug, Record),
    ("Snapshot of the compacted log, for readers by ØMQ Raft", log_snapshot, Record),
    ("The client of farms", client_status, Record),
    ("", farm_status, Record),
    ("Requests to the control endpoint", requests, RequestBody),
    ("A Meta LeaseSet2 decoded", lease_set_report, Record),
)
LEASE_SET = """
FILE of `garlicfarm lease-set show FILE` contains a Meta LeaseSet2 as bytes or as hexadecimal text (blanks, line ends,
colons and a leading `0x` are allowed). The exit code is 0 only if `signature.verified` is true. The command verifies
Ed25519 (type 7) and RedDSA (type 11) signatures by the rule of Java routers. By this rule, S is below the group's
order, and the equation lacks the cofactor. It shows structures with other types with the verdict `cannot verify`. An
expired transient key does not invalidate the signature, but is a reason not to accept the structure.
"""


def page() -> str:
    parts = [HEAD]
    parts += [f"| {command} | {_link(document)} |\n" for command, document in PASSED_ON.items()]
    parts.append("| others | [output of commands](#output-of-commands) |\n")
    for heading, module, base in CHAPTERS:
        parts += [f"\n## {heading}\n"] * bool(heading) + [LEASE_SET] * (module is lease_set_report)
        parts += [_struct(kind) for kind in _structs(module, base)]
    return "".join(parts)


def _structs(module: ModuleType, base: type[Struct]) -> Iterator[type[Struct]]:
    """Yield the public types of a module: its documents first, then the objects in them."""
    found = [
        kind
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and issubclass(kind, base) and kind.__module__ == module.__name__ and name[0] != "_"
    ]
    yield from sorted(found, key=lambda kind: not issubclass(kind, Document))


def _struct(kind: type[Struct]) -> str:
    meanings = {name: f"{each.meaning}, {each.unit.value}." for name, each in FIGURES.items()}
    meanings |= _meanings(kind)
    rows = [
        f"| `{field.encode_name}` | {_type(field.type)} | {meanings[field.name]} |\n"
        for field in msgspec.structs.fields(kind)
        if field.name in meanings or field.default is NODEFAULT
    ]
    return f"\n### {kind.__name__}\n\n{inspect.getdoc(kind)}\n\n| key | type | meaning |\n|---|---|---|\n" + "".join(
        rows
    )


def _meanings(kind: type[Struct]) -> dict[str, str]:
    """Return the docstrings of the fields, including the fields of its base classes."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if not (issubclass(each, Struct) and each.__module__.startswith("bridge.")):
            continue
        body = _classes(each.__module__)[each.__name__].body
        for field, text in pairwise(body):
            match field, text:
                case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(words))):
                    found[name] = " ".join(words.split()).replace("|", "\\|")
                case _:
                    pass
    return found


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {each.name: each for each in tree.body if isinstance(each, ast.ClassDef)}


def _type(annotation: object) -> str:
    return _shown(kinds.type_info(annotation))


def _shown(kind: kinds.Type) -> str:
    match kind:
        case kinds.UnionType():
            return " or ".join(_shown(each) for each in kind.types if getattr(each, "cls", None) is not UnsetType)
        case kinds.VarTupleType() | kinds.ListType():
            return f"list of {_shown(kind.item_type)}"
        case kinds.DictType():
            return f"object of {_shown(kind.value_type)}"
        case kinds.StructType():
            return _link(kind.cls.__name__)
        case kinds.EnumType():
            return _words(kind.cls)
        case _:
            return WORDS.get(type(kind), type(kind).__name__)


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"


def _words(kind: type[Enum]) -> str:
    return ", ".join(f"`{each.value}`" for each in kind)


WORDS: dict[type[kinds.Type], str] = {
    kinds.StrType: "string",
    kinds.IntType: "integer",
    kinds.FloatType: "number",
    kinds.BoolType: "boolean",
    kinds.NoneType: "`null`",
    kinds.AnyType: "any",
    kinds.BytesType: "base64",
}
