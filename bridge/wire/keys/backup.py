"""The backup file: a farm's agreed state, from one of its servers.

    line 1     garlicfarm backup 2
    line 2     SHA-256 of everything after this line, in hexadecimal
    line 3     {"node": …, "founding": F, "index": …, "term": …, "configuration": …, "madeAtMs": …, "cluster": …,
               "label": …, "epoch": …}
    then       the state machine's documents (`bridge.wire.log.snapshot`)

A backup does not contain hard state or an identity key, because a second server could then act as the first. It does
not contain a farm key or signing keys, because backups are stored in less protected places. `label` and `epoch` name
the farm key file that belongs to it.

F is as in a node's formation state, with the promises that certify it. Version 1 named cluster id and founders without
the promises. Such a backup can be read, but no server can join that farm: its state becomes the state of a new cluster.

The head is JSON on a separate line, so that an operator can recognize the file.
"""

import base64
import hashlib
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from bridge.core.formation.founding import CLUSTER_ID_BYTES, NODE_ID_BYTES, Founding
from bridge.core.log.fields import NAME
from bridge.wire.membership.formation_state import FoundingJson, read_founding, written_founding
from consensus import Configuration, LogId, decode_configuration, encode_configuration

BACKUP_LIMIT_BYTES: Final = 512 * 1024 * 1024
_MAGIC: Final = b"garlicfarm backup 2\n"
_MAGIC_1: Final = b"garlicfarm backup 1\n"
_SUM_LINE_BYTES: Final = 2 * hashlib.sha256().digest_size + 1
_HEAD_LIMIT_BYTES: Final = 2 * 1024 * 1024

_NodeId = Annotated[str, Meta(pattern=f"^[0-9a-f]{{{2 * NODE_ID_BYTES}}}\\Z")]
_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""A number up to the greatest term and index of Raft, so that any server's state can be backed up."""


class BackupError(ValueError):
    """The bytes are not a backup, or are damaged; or a backup cannot be written as bytes."""


class BackupHead(Struct, frozen=True, kw_only=True):
    """The origin of the backup. `cluster`, `label` and `epoch` name the farm key file, if it was known."""

    node_id: bytes
    cluster_id: bytes
    founding: Founding | None
    """The founding; None in a backup of version 1, whose farm cannot be verified."""
    configuration: Configuration
    last: LogId
    made_at_ms: int
    cluster: str = ""
    label: str = ""
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Backup:
    """Head and state; `image` holds the documents that `decode_farm` reads."""

    head: BackupHead
    image: bytes = field(repr=False)


class _AnyHead(msgspec.Struct, rename="camel"):
    node: _NodeId
    index: _Number
    term: _Number
    configuration: str
    made_at_ms: _Number
    cluster: Annotated[str, Meta(pattern=f"^(?:{NAME})?\\Z")] = ""
    label: Annotated[str, Meta(max_length=64)] = ""
    epoch: _Number = 0


class _Head(_AnyHead, kw_only=True):
    founding: FoundingJson


class _Head1(_AnyHead, kw_only=True):
    cluster_id: Annotated[str, Meta(pattern=f"^[0-9a-f]{{{2 * CLUSTER_ID_BYTES}}}\\Z")]


def encode_backup(backup: Backup) -> bytes:
    """Return the bytes of the file; raise `BackupError` for a backup of version 1, and for unreadable numbers."""
    head = backup.head
    if head.founding is None:
        raise BackupError(
            "its farm was created by an old version that could not verify farms: keep the backup as it is"
        )
    written = _Head(
        node=head.node_id.hex(),
        founding=written_founding(head.founding),
        index=head.last.index,
        term=head.last.term,
        configuration=base64.b64encode(encode_configuration(head.configuration)).decode(),
        made_at_ms=head.made_at_ms,
        cluster=head.cluster,
        label=head.label,
        epoch=head.epoch,
    )
    line = msgspec.json.encode(written)
    try:
        msgspec.json.decode(line, type=_Head)
    except msgspec.ValidationError as error:
        raise BackupError(f"no version could read its head: {error}") from error
    body = line + b"\n" + backup.image
    return _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def decode_backup(data: bytes) -> Backup:
    """Parse the bytes of a file; raise `BackupError` only."""
    if len(data) > BACKUP_LIMIT_BYTES:
        raise BackupError(f"it is larger than {BACKUP_LIMIT_BYTES} bytes")
    if not data.startswith((_MAGIC, _MAGIC_1)):
        raise BackupError("it does not begin like a backup of this version of garlicfarm")
    start = len(_MAGIC) + _SUM_LINE_BYTES
    body = data[start:]
    if data[len(_MAGIC) : start] != hashlib.sha256(body).hexdigest().encode() + b"\n":
        raise BackupError("its checksum does not match: it is damaged, or was not copied whole")
    line, newline, _ = body[:_HEAD_LIMIT_BYTES].partition(b"\n")
    if not newline:
        raise BackupError("its head does not end")
    try:
        head, cluster_id, founding = _read_head(line, before=data.startswith(_MAGIC_1))
        configuration = decode_configuration(base64.b64decode(head.configuration, validate=True))
    except (ValueError, RecursionError) as error:
        raise BackupError(f"its head cannot be read: {error}") from None
    return Backup(
        BackupHead(
            node_id=bytes.fromhex(head.node),
            cluster_id=cluster_id,
            founding=founding,
            configuration=configuration,
            last=LogId(head.index, head.term),
            made_at_ms=head.made_at_ms,
            cluster=head.cluster,
            label=head.label,
            epoch=head.epoch,
        ),
        body[len(line) + 1 :],
    )


def _read_head(line: bytes, *, before: bool) -> tuple[_AnyHead, bytes, Founding | None]:
    if before:
        earlier = msgspec.json.decode(line, type=_Head1)
        return earlier, bytes.fromhex(earlier.cluster_id), None
    head = msgspec.json.decode(line, type=_Head)
    founding = read_founding(head.founding)
    return head, founding.cluster_id, founding
