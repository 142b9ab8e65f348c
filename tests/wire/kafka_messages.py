"""Writes `consensus/protocols/kafka/wire/messages_*.py` from kio, which contains Kafka's schemas of every version.

    python -m tests.wire.kafka_messages      after a change of kio, of `apis.ApiKey` or of this file

One class represents all served versions of a message. It has the fields of the newest version in that version's order,
then the fields that only older versions have. A field has a default if the schema gives one, or if a version lacks the
field. Equal parts in one module are one class. UUIDs are never None here: zeros mean "no UUID". Times are integers in
milliseconds. The classes of a message's parts begin with its name: its `PartitionData` is `…Partition`.
"""

import dataclasses
import re
from collections.abc import Iterator
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Any, Final, get_args, get_origin

from consensus.protocols.kafka.wire.apis import VERSIONS, ApiKey
from consensus.protocols.kafka.wire.schemas import TIMES, Direction

WIRE: Final = Path(__file__).parents[2] / "consensus" / "protocols" / "kafka" / "wire"
SUBJECTS: Final = {
    "quorum": "The messages of the servers of a quorum: Vote, the begin and end of an epoch, snapshots; not Fetch.",
    "clients": "The messages of consumers and producers, of every connection, and Fetch, which servers send as well.",
    "groups": "The messages of consumer groups: their members, their offsets, and their descriptions for tools.",
    "admin": "The messages of tools, of changes of the voters, and of servers of Kafka that look for a controller.",
}
HEAD: Final = '''"""{subject}

Generated from kio by `tests/wire/kafka_messages.py`, which has the rules; `test_kafka_messages.py` compares. Kafka's
documents explain the fields. A version that lacks a field does not write it, and has its default when read (`codec`).
"""

from typing import Final
{uuid}
from msgspec import Struct

from consensus.protocols.kafka.wire.apis import ApiKey
{zero}
'''
TYPES: Final = {"string": "str", "bytes": "bytes", "records": "bytes", "uuid": "UUID", "bool": "bool"}
ZEROS: Final = {"str": '""', "bytes": 'b""', "UUID": "ZERO_UUID", "bool": "False", "int": "0"}
NAMES: Final = {
    "BatchIndexAndErrorMessage": "RecordError",
    "MemberIdentity": "Member",
    "MemberResponse": "Member",
    "DescribedGroup": "Group",
    "DescribedGroupMember": "Member",
    "ListedGroup": "Group",
    "ApiVersion": "Api",
    "SupportedFeatureKey": "SupportedFeature",
    "FinalizedFeatureKey": "FinalizedFeature",
    "DescribeConfigsResourceResult": "Config",
    "ReplicaInfo": "Candidate",
    "KRaftVersionFeature": "KRaftVersion",
    "OffsetForLeaderEpochResponse.EpochEndOffset": "Partition",
    "DescribeQuorumResponse.ReplicaState": "Replica",
}
"""Parts with irregular names."""
DEFAULTS: Final = {"FetchResponsePartition.records": 'b""'}
"""A response without records has an empty byte string, not null."""


@dataclasses.dataclass
class Part:
    """A class to write: its fields by name, with type and default."""

    name: str
    fields: dict[str, tuple[str, str | None]]


def part_name(message: str, theirs: str) -> str:
    """Return the class name of a part of a message; `theirs` is Kafka's name."""
    found = NAMES.get(theirs) or NAMES.get(f"{message}.{theirs}")
    if found is None and theirs != "ForgottenTopic":
        found = next((each for each in ("Topic", "Partition") if each in theirs), None)
    if found is None:
        action = re.sub("(Request|Response)$", "", message)
        found = theirs.removeprefix(message).removeprefix(action)
    return message + found


def without_none(annotation: Any) -> tuple[Any, bool]:
    parts = [part for part in get_args(annotation) if part is not NoneType]
    return (parts[0], True) if NoneType in get_args(annotation) else (annotation, False)


def default_of(field: "dataclasses.Field[Any]", name: str, kind: str, *, lacks: bool) -> str | None:
    """Return the default of a field as source text, or None. `lacks`: some version does not have the field."""
    value, nullable = field.default, kind.endswith(" | None")
    zero = ZEROS.get(kind, "()" if kind.startswith("tuple") else f"{kind}()")
    if value is dataclasses.MISSING:
        is_late = lacks or "tag" in field.metadata or name.endswith((".error_code", ".throttle_time"))
        found = "None" if nullable else zero if is_late else None
    elif value is None and not nullable:
        found = "-1" if kind == "int" else zero
    elif isinstance(value, timedelta):
        found = str(value // timedelta(milliseconds=1))
    elif isinstance(value, str):
        found = "None" if nullable and not value else f'"{value}"'
    elif dataclasses.is_dataclass(value):
        found = zero
    else:
        found = repr(int(value) if isinstance(value, int) and not isinstance(value, bool) else value)
    return DEFAULTS.get(name, found)


def versions_of(message: str, api: str, direction: Direction, versions: range) -> list[type[Any]]:
    return [getattr(import_module(f"kio.schema.{api}.v{version}.{direction.value}"), message) for version in versions]


def parts_of(message: str, name: str, versions: list[type[Any] | None], *, tagged: bool = False) -> Iterator[Part]:
    """Yield a class after its parts. In `versions`, None marks a version without the class."""
    there: dict[str, list[Any]] = {}
    for number, theirs in reversed([*enumerate(versions)]):
        for field in dataclasses.fields(theirs) if theirs is not None else ():
            there.setdefault(field.name, [None] * len(versions))[number] = field
    found: dict[str, tuple[str, str | None]] = {}
    for own, fields in there.items():
        last = next(field for field in reversed(fields) if field is not None)
        kafka_type, (kind, _) = last.metadata.get("kafka_type"), without_none(last.type)
        text = TYPES.get(kafka_type, "int")
        if kafka_type is None:
            text = part_name(message, element_of(kind).__name__)
            inner = [None if field is None else element_of(without_none(field.type)[0]) for field in fields]
            yield from parts_of(message, text, inner, tagged="tag" in last.metadata and element_of(kind) is kind)
        if get_origin(kind) is tuple:
            text = f"tuple[{text}, ...]"
        lacks = tagged or any(field is None and theirs for field, theirs in zip(fields, versions, strict=True))
        has_null = any(field is not None and without_none(field.type)[1] for field in fields)
        if has_null and text not in ("UUID", "int") and not (kafka_type is None and "tuple" not in text):
            text += " | None"
        found[own + "_ms" * (kafka_type in TIMES)] = text, default_of(last, f"{name}.{own}", text, lacks=lacks)
    yield Part(name, found)


def element_of(kind: Any) -> type[Any]:
    """Return the class of an array's elements, or the class itself."""
    element: type[Any] = without_none(get_args(kind)[0])[0] if get_origin(kind) is tuple else kind
    return element


def module_text(subject: str) -> str:
    rows, written = list[str](), dict[str, list[str]]()
    equals, aliases = dict[str, str](), dict[str, str]()
    for api_key in (each for each in ApiKey if each.subject == subject):
        names = []
        for direction in Direction:
            message = "".join(map(str.capitalize, api_key.name.split("_"))) + direction.value.capitalize()
            lowest, highest = VERSIONS[api_key]
            versions = versions_of(message, api_key.name.lower(), direction, range(lowest, highest + 1))
            for part in parts_of(message, message, [*versions]):
                fields = part.fields.items()
                lines = [f"    {name}: {kind}" + (f" = {value}" if value else "") for name, (kind, value) in fields]
                lines = [re.sub(r"\w+", lambda word: aliases.get(word[0], word[0]), line) for line in lines]
                equal = part.name if part.name == message else equals.setdefault("\n".join(lines), part.name)
                if equal != part.name:
                    aliases[part.name] = equal
                    written[part.name] = ["", "", f"{part.name} = {equal}"]
                    continue
                written[part.name] = ["", "", f"class {part.name}(Struct, frozen=True, kw_only=True):", *lines]
                if not part.fields:
                    written[part.name].append("    pass")
            names.append(message)
        rows.append(f"    ApiKey.{api_key.name}: ({', '.join(names)}),")
    text = "\n".join(line for lines in written.values() for line in lines)
    uuid = "from uuid import UUID\n" if "UUID" in text else ""
    zero = "from consensus.protocols.kafka.wire.limits import ZERO_UUID" if "ZERO_UUID" in text else ""
    head = HEAD.format(subject=SUBJECTS[subject], uuid=uuid, zero=zero).rstrip("\n")
    return (
        head
        + "\n"
        + text
        + "\n\n\nMESSAGES: Final = {\n"
        + "\n".join(rows)
        + '\n}\n"""Request and response by API."""\n'
    )


if __name__ == "__main__":
    for each in SUBJECTS:
        (WIRE / f"messages_{each}.py").write_text(module_text(each), encoding="utf-8")
