"""The backup file: what a farm agreed on, as one of its servers knew it.

    garlicfarm backup 1 ⏎
    SHA-256 of everything behind this line, in hexadecimal ⏎
    {"node": …, "clusterId": …, "founders": […], "logTimeBaseMs": …, "index": …, "term": …, "configuration": …,
     "madeAtMs": …, "cluster": …, "label": …, "epoch": …} ⏎
    the state machine's documents (`bridge.wire.farm_snapshot`)

Not in it: ballot and identity key, since with either a second server could speak as the first; the farm's keys and any
signing key, since a backup lies where backups lie. `label` and `epoch` say which farm key file belongs to it.

The head is JSON on a line of its own, so that an operator who finds such a file can see what it is.
"""

import base64
import hashlib
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from bridge.core.founding import CLOCK_LIMIT_MS, CLUSTER_ID_BYTES, EXPECT_MAX, NODE_ID_BYTES, Founding
from consensus.core.position import Configuration, LogPosition
from consensus.wire.record import RecordError, decode_configuration, encode_configuration

BACKUP_LIMIT_BYTES: Final = 512 * 1024 * 1024
_MAGIC: Final = b"garlicfarm backup 1\n"
_SUM_LINE_BYTES: Final = 2 * hashlib.sha256().digest_size + 1
_HEAD_LIMIT_BYTES: Final = 2 * 1024 * 1024

_NodeId = Annotated[str, Meta(pattern=f"^[0-9a-f]{{{2 * NODE_ID_BYTES}}}\\Z")]
_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""As far as Raft counts: what a server can have, its backup can."""


class BackupError(ValueError):
    """These bytes are no backup, or a damaged one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupHead:
    """What it is a backup of. `cluster`, `label` and `epoch` name the farm key file, if that was known."""

    node_id: bytes
    founding: Founding
    configuration: Configuration
    last: LogPosition
    made_at_ms: int
    cluster: str = ""
    label: str = ""
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Backup:
    """Head and state; `image` are the documents that `decode_farm` reads."""

    head: BackupHead
    image: bytes = field(repr=False)


class _Head(msgspec.Struct, rename="camel"):
    node: _NodeId
    cluster_id: Annotated[str, Meta(pattern=f"^[0-9a-f]{{{2 * CLUSTER_ID_BYTES}}}\\Z")]
    founders: Annotated[list[_NodeId], Meta(min_length=1, max_length=EXPECT_MAX)]
    log_time_base_ms: Annotated[int, Meta(ge=0, lt=CLOCK_LIMIT_MS)]
    index: _Number
    term: _Number
    configuration: str
    made_at_ms: _Number
    cluster: Annotated[str, Meta(max_length=64)] = ""
    label: Annotated[str, Meta(max_length=64)] = ""
    epoch: _Number = 0


def encode_backup(backup: Backup) -> bytes:
    """The bytes of the file."""
    head = backup.head
    written = _Head(
        node=head.node_id.hex(),
        cluster_id=head.founding.cluster_id.hex(),
        founders=[each.hex() for each in head.founding.founders],
        log_time_base_ms=head.founding.log_time_base_ms,
        index=head.last.index,
        term=head.last.term,
        configuration=base64.b64encode(encode_configuration(head.configuration)).decode(),
        made_at_ms=head.made_at_ms,
        cluster=head.cluster,
        label=head.label,
        epoch=head.epoch,
    )
    body = msgspec.json.encode(written) + b"\n" + backup.image
    return _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def decode_backup(data: bytes) -> Backup:
    """Read it again; raises `BackupError` only."""
    if len(data) > BACKUP_LIMIT_BYTES:
        raise BackupError(f"it is larger than {BACKUP_LIMIT_BYTES} bytes")
    if not data.startswith(_MAGIC):
        raise BackupError("it does not begin like a backup of this version of garlicfarm")
    start = len(_MAGIC) + _SUM_LINE_BYTES
    body = data[start:]
    if data[len(_MAGIC) : start] != hashlib.sha256(body).hexdigest().encode() + b"\n":
        raise BackupError("its checksum does not match: it is damaged, or was not copied whole")
    line, newline, _ = body[:_HEAD_LIMIT_BYTES].partition(b"\n")
    if not newline:
        raise BackupError("its head does not end")
    try:
        head = msgspec.json.decode(line, type=_Head)
        configuration = decode_configuration(base64.b64decode(head.configuration, validate=True))
    except (ValueError, RecursionError, RecordError) as error:
        raise BackupError(f"its head cannot be read: {error}") from None
    founders = tuple(bytes.fromhex(each) for each in head.founders)
    return Backup(
        BackupHead(
            node_id=bytes.fromhex(head.node),
            founding=Founding(bytes.fromhex(head.cluster_id), founders, head.log_time_base_ms),
            configuration=configuration,
            last=LogPosition(head.index, head.term),
            made_at_ms=head.made_at_ms,
            cluster=head.cluster,
            label=head.label,
            epoch=head.epoch,
        ),
        body[len(line) + 1 :],
    )
