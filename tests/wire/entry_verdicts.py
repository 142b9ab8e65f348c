"""Generated application entries, and the decoder's verdict on each as text that does not depend on the decoder's code.

    seed ──▶ an entry of some kind ──▶ members replaced, dropped, repeated, added ──▶ bytes changed ──▶ `decode`
                                                                                                         │
             one hash for `BLOCK` seeds ◀── fields with their types, JSON written again, kind, level ◀───┘

All servers decode the same log: if two of them read an entry differently, they compute different states. JSON leaves
much open: 1.0 for an integer, a repeated key, an unknown member with a number out of range. So the tests compare each
change of the decoder with the recorded verdicts.

A verdict does not contain the error text: no state contains it, and it depends on the version of the JSON library.

`python -m tests.wire.entry_verdicts` records the hashes again. Do that only for a change that a feature level permits.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any

from bridge.core.log import kinds, records
from bridge.core.log.fields import BOX_BYTES
from bridge.core.log.hashes import hash_of
from bridge.wire.i2p.structures import ed25519_destination
from bridge.wire.log.entries import decode, encode, is_plainly_foreign, kinds_named
from gossip.wire import node_id_of

BLOCK = 100
BLOCKS = 1_000
VECTORS = Path(__file__).parents[1] / "vectors" / "entry-verdicts.txt"


class _Raw(str):
    """JSON text, written unchanged."""

    __slots__ = ()


_DESTINATIONS = tuple(ed25519_destination(bytes([n]) * 32, bytes(32)).base64 for n in range(4))
_HASHES = tuple(map(hash_of, _DESTINATIONS))
_KEYS = tuple(bytes([n]) * 32 for n in range(1, 4))
_NODES = tuple(bytes(node_id_of(key)).hex() for key in _KEYS)
_KEY_TEXTS = tuple(base64.b64encode(key).decode() for key in _KEYS)
_BOX = base64.b64encode(bytes(BOX_BYTES)).decode()
_NUMBER_TEXT = """
0 1 2 -1 -0 7 255 256 65535 65536 2147483647 2147483648 4294967295 4294967296 9007199254740991 9007199254740992
9223372036854775807 9223372036854775808 18446744073709551615 18446744073709551616 -9223372036854775808
-9223372036854775809 123456789012345678901234567890 1.0 -0.0 0.0 1e3 1E3 1e+2 1.5 0.1 100.0 100.5 1e9 1000000001.0
1e400 -1e400 1e-400 5e-324 1.7976931348623157e308 9007199254740993.0
"""
_NUMBERS = tuple(_NUMBER_TEXT.split())
_NOT_JSON = (
    "NaN",
    "Infinity",
    "-Infinity",
    "01",
    "+1",
    "1.",
    ".5",
    "0x1",
    "True",
    "None",
    "'a'",
    "undefined",
    "1 2",
    "",
)
_STRINGS = (
    *('""', '"a"', '"1"', '"true"', '"\\u0000"', '"\\ud800"', '"\\ud83d\\ude00"', '"\\u0061"', '"\x01"', '"\\x41"'),
    *('"a\\n"', '"é"', '"😀"', '"-n"', '"auto"', '"weights"', '"operator"', '"router"', '"service"', '"unterminated'),
)
_OTHERS = ("true", "false", "null", "[]", "{}", "[[]]", '{"":null}', "[1]", '["a"]', "[null]", "[" * 40 + "]" * 40)
_LONG = ("x" * 31, "x" * 32, "x" * 33, "x" * 64, "x" * 65, "x" * 128, "x" * 129, "x" * 200, "x" * 256, "é" * 128)
_OWN = ("hash", "server", "node", "name", "key", "master", "id", "time", "era", "boxes", "proof", "more", "", "request")


def _json(value: Any) -> str:
    if isinstance(value, _Raw):
        return value
    if isinstance(value, list):
        return "[" + ",".join(map(_json, value)) + "]"
    if isinstance(value, _Object):
        return (
            "{"
            + ",".join(
                f"{name if isinstance(name, _Raw) else json.dumps(name)}:{_json(each)}" for name, each in value.members
            )
            + "}"
        )
    return json.dumps(value, ensure_ascii=False)


class _Object:
    """A JSON object whose members may repeat."""

    __slots__ = ("members",)

    def __init__(self, **members: Any) -> None:
        self.members: list[tuple[str, Any]] = list(members.items())


def _some(random: Random, *members: tuple[str, Callable[[Random], Any]], share: float = 0.5) -> dict[str, Any]:
    return {name: make(random) for name, make in members if random.random() < share}


def _count(random: Random) -> int:
    return random.choice((0, 1, 2, 5, 1000, 65535, 2**31 - 1, 2**32 - 1, 2**53 - 1))


def _destination(random: Random) -> str:
    return random.choice(_DESTINATIONS)


def _hash(random: Random) -> str:
    return random.choice(_HASHES)


def _flag(random: Random) -> bool:
    return random.random() < 0.5


def _percent(random: Random) -> float:
    return random.choice((0, 1, 2.5, 100, 100.0, 1e2, 0.0))


def _server(random: Random) -> int:
    return random.choice((1, 2, 3, 2**31 - 1))


def _meta(random: Random) -> _Object:
    optional = _some(
        random,
        ("publishing", _flag),
        ("lastPublishedTime", _count),
        ("lastPublishedLS", lambda _: "AAAA"),
        ("canSignUntil", _server),
        ("publishFailure", _anything),
        ("standby", _anything),
    )
    return _Object(destination=_destination(random), publishConfig=random.choice(("off", "auto", "on")), **optional)


def _leaf(random: Random) -> _Object:
    counts = ("uptime", "configuredTunnels", "currentTunnels", "configuredBandwidth", "currentConnections")
    optional = _some(random, ("healthy", _flag), ("master", _hash), *((name, _count) for name in counts), share=0.4)
    faults = {"faults": random.choice((["router"], ["service", "leaseSet"], [], [1, "router"], "router"))}
    members = ("routerAge", "routerError", "leaseSetFailures", "serviceAge", "serviceFailures", "serviceError")
    conditions = {name: random.choice((_count, _anything))(random) for name in members} if _flag(random) else {}
    return _Object(destination=_destination(random), **optional, **(faults if _flag(random) else {}), **conditions)


def _measurement(random: Random) -> _Object:
    return _Object(hash=_hash(random), reachable=_flag(random), **_some(random, ("fetchTime", _count)))


def _directory(random: Random) -> Any:
    if random.random() < 0.3:
        return _anything(random)
    members = (("hash", _hash), ("problem", lambda _: "no SAM"), ("hash", _anything), ("problem", _anything))
    return _Object(**_some(random, *members, share=0.4))


def _router(random: Random) -> _Object:
    counts = ("uptime", "exploratoryTunnels", "participatingTunnels", "configuredBandwidth", "currentBandwidth")
    shares = ("jobLag", "cpuPercent", "memoryPercent")
    members = (("attached", _flag), *((name, _count) for name in counts), *((name, _percent) for name in shares))
    return _Object(**_some(random, *members, ("lastPublishedRI", lambda _: "BBBB"), share=0.3))


def _report(random: Random) -> _Object:
    def listed(make: Callable[[Random], _Object], most: int) -> list[_Object]:
        return [make(random) for _ in range(random.randint(0, most))]

    optional = _some(
        random,
        ("meta", lambda _: _meta(random) if _flag(random) else listed(_meta, 2)),
        ("destinations", lambda _: listed(_leaf, 2)),
        ("remoteDestinations", lambda _: listed(_measurement, 2)),
        ("remoteMetas", lambda _: listed(_measurement, 1)),
        ("config", lambda _: _Object(a=1)),
        ("directory", _directory),
    )
    return _Object(cluster="farm", date=_count(random), id=_server(random), router=_router(random), **optional)


def _key_of(random: Random, number: int) -> dict[str, Any]:
    return (
        {"key": random.choice((_KEY_TEXTS[number], _KEY_TEXTS[number], _KEY_TEXTS[0], None))} if _flag(random) else {}
    )


def _admission(random: Random) -> _Object:
    number = random.randrange(3)
    return _Object(server=_server(random), node=_NODES[number], name="node-4", **_key_of(random, number))


def _approval(random: Random) -> _Object:
    number = random.randrange(3)
    replaces = random.choice(_NODES)
    return _Object(server=1, node=_NODES[number], name="n", replaces=replaces, **_key_of(random, number))


def _boxes(random: Random) -> _Object:
    return _Object(**dict.fromkeys(random.sample(_NODES, random.randint(0, 3)), _BOX))


def _client(random: Random) -> _Object:
    scopes = [random.choice(("weights", "operator")) for _ in range(random.randint(0, 3))]
    return _Object(name="pipe", key=random.choice(_KEY_TEXTS), scopes=scopes, admitted=_flag(random))


def _principal(random: Random) -> Any:
    return random.choice(("0a" * 16, "0A" * 16, _Raw('"0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0\\u0061"'), 5, None))


def _offset(random: Random) -> _Object:
    epoch = ("epoch", lambda _: random.choice((-1, 0, 2**31 - 1, -2)))
    optional = _some(random, epoch, ("metadata", lambda _: random.choice(("", "m"))), ("principal", _principal))
    return _Object(group=random.choice(("g", "x" * 255, "x" * 256)), offset=_count(random), **optional)


def _factors(random: Random) -> _Object:
    factors = _Object(**{random.choice(_HASHES): random.choice((1, 1.25, 2, -3.5)) for _ in range(2)})
    return _Object(throughIndex=_count(random), formula="lag", factors=factors)


_BODIES: Mapping[str, Callable[[Random], Any]] = {
    "clock": lambda random: _Object(time=_count(random), id=_server(random), **_some(random, ("period", _count))),
    "publication": lambda random: _Object(
        master=_destination(random),
        id=_server(random),
        published=random.choice((0, 5, 2**32 - 1)),
        contentHash="c" * 43,
    ),
    "admission": _admission,
    "approval": _approval,
    "eviction": lambda random: _Object(node=random.choice(_NODES), era=_server(random), boxes=_boxes(random)),
    "rekeying": lambda random: _Object(era=_server(random), boxes=_boxes(random)),
    "level": lambda random: _Object(number=random.choice((1, 2, 9, 65535)), version=random.choice(("0.1.0", "x" * 32))),
    "exclusion": lambda random: _Object(hash=_hash(random), excluded=_flag(random)),
    "cost": lambda random: _Object(hash=_hash(random), factor=random.choice((1, 1.5, 1e9, -1e9, 0.001))),
    "force": lambda random: _Object(master=_destination(random)),
    "factors": _factors,
    "removal": lambda random: _Object(server=_server(random), removed=_flag(random)),
    "client": _client,
    "correction": lambda random: _Object(clock=_count(random)),
    "kafkaProducer": lambda random: _Object(name="n", **_some(random, ("principal", _principal))),
    "kafkaOffset": _offset,
    "handover": lambda random: _Object(term=_server(random)),
}


def _anything(random: Random) -> Any:
    match random.randrange(6):
        case 0 | 1:
            return _Raw(random.choice(_NUMBERS))
        case 2:
            return _Raw(random.choice(_STRINGS))
        case 3:
            return random.choice((*_LONG, *_HASHES, *_NODES, *_KEY_TEXTS, _BOX, _HASHES[0] + "\n", _KEY_TEXTS[0] + "="))
        case 4:
            return _Raw(random.choice(_OTHERS))
        case _:
            return _Raw(random.choice(_NOT_JSON)) if random.random() < 0.3 else _Object(hash=_HASHES[0], id=1)


def _objects(value: Any) -> list[_Object]:
    if isinstance(value, list):
        return [inner for each in value for inner in _objects(each)]
    return (
        [value, *(inner for _, each in value.members for inner in _objects(each))] if isinstance(value, _Object) else []
    )


def _mutate(entry: _Object, random: Random) -> None:
    """Change one member of an object somewhere in the entry."""
    members = random.choice(_objects(entry)).members
    at = random.randrange(len(members)) if members else 0
    match random.randrange(8) if members else 3:
        case 0 | 1 | 2:
            members[at] = members[at][0], _anything(random)
        case 3:
            members.insert(at, (random.choice((*_OWN, "router", *_BODIES)), _anything(random)))
        case 4:
            members.append((members[at][0], members[at][1] if _flag(random) else _anything(random)))
        case 5:
            del members[at]
        case 6:
            name = members[at][0]
            escaped = _Raw('"' + "".join(f"\\u{ord(each):04x}" for each in name) + '"')
            members[at] = random.choice((name.upper(), name + "s", name[:-1], escaped)), members[at][1]
        case _:
            value = members[at][1]
            members[at] = members[at][0], random.choice(([value], [value, value], None, _Raw(f" {_json(value)}\n")))


_BYTES = (
    b"\xff",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"\x00",
    b"\xef\xbb\xbf",
    b" ",
    b",",
    b"}",
    b"{",
    b'"',
    b"\\",
    b"\x0c",
    b"null",
)


def _scramble(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    match random.randrange(6):
        case 0:
            return data[:at]
        case 1:
            return data + random.choice(_BYTES)
        case 2:
            return data[:at] + bytes([random.randrange(256)]) + data[at + 1 :]
        case 3:
            return data[:at] + data[at + random.randint(1, 4) :]
        case _:
            return data[:at] + random.choice(_BYTES) + data[at:]


def entry_of(seed: int) -> bytes:
    """Return the entry of a seed. About a third of all seeds have a valid entry of a known kind."""
    random = Random(seed)
    kind = random.choice(("router", *_BODIES))
    entry = _report(random) if kind == "router" else _Object(**{kind: _BODIES[kind](random)})
    if random.random() < 0.3:
        entry.members.insert(
            random.randint(0, 1), ("request", random.choice(("c-1-2", "zmq:5", "", "x" * 128, "x" * 129, 5, None)))
        )
    if random.random() < 0.04:
        other = random.choice(tuple(_BODIES))
        entry.members.append((other, _BODIES[other](random)))
    for _ in range(random.choice((0, 0, 0, 1, 1, 1, 2))):
        _mutate(entry, random)
    data = _json(entry).encode("utf-8", "surrogatepass")
    if random.random() < 0.12:
        data = _scramble(data, random)
    if random.random() < 0.005:
        data = (
            data[:-1]
            + b"," * (len(data) > 2)
            + b'"deep":'
            + random.choice((b"[" * 300, b"[" * 200 + b"]" * 200, b'"' + b"x" * 66_000 + b'"'))
            + b"}"
        )
    return data


def _plain(value: Any) -> Any:
    """Return a value as JSON data that names the type of each part."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, tuple | list):
        return [type(value).__name__, *map(_plain, value)]
    if isinstance(value, Mapping):
        return ["mapping", *([_plain(key), _plain(each)] for key, each in value.items())]
    names = getattr(type(value), "__match_args__", None)
    if names is None:
        return f"{type(value).__name__} {value!r}"
    return [type(value).__name__, *([name, _plain(getattr(value, name))] for name in names if name != "reason")]


def verdict_on(data: bytes) -> str:
    """Return all results of decoding an entry as one line of text."""
    record = decode(data)
    try:
        written = "" if isinstance(record, records.Foreign) else encode(record).hex()
    except ValueError:
        written = "cannot be written"
    facts = (
        _plain(record),
        kinds.kind_of(record).name,
        records.request_of(record),
        kinds.kind_of(record).level,
        kinds_named(data),
        is_plainly_foreign(data),
        written,
    )
    return json.dumps(facts)


def digest_of(block: int) -> str:
    """Return one hash for the verdicts of a block of seeds."""
    found = hashlib.sha256()
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        data = entry_of(seed)
        found.update(hashlib.sha256(data).digest() + verdict_on(data).encode())
    return found.hexdigest()[:16]


def recorded() -> Sequence[str]:
    return VECTORS.read_text().split()


if __name__ == "__main__":
    VECTORS.write_text("".join(f"{digest_of(block)}\n" for block in range(BLOCKS)))
