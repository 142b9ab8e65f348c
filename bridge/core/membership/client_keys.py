"""Client keys: keys of programs other than servers that may submit entries with an effect on the farm.

    client entry, signed by a server ──▶ the key may write entries of its scopes, or may no longer

A pipeline that sets factors, or a script that excludes a leaf, does not need the far greater rights of a node's
identity key. A client key is an Ed25519 key with a name and scopes. The name is for people and belongs to one admitted
key at a time. A removed key stays in the table while there is room. If it is admitted again, its numbers continue
(`bridge.core.membership.authors`), so its earlier entries do not count again.

*Shares.* From `BOUNDS_LEVEL` on a key counts against the share of the server that signed its admission. The share is
`CLIENTS_OF_SERVER_MAX` admitted keys, and the table has room for the shares of four servers. Removed keys do not count;
in a full table one of them is dropped. The recorded server also identifies the keys that an evicted node admitted.
"""

from collections.abc import Mapping

from msgspec import Struct

from bridge.core.log.records import ClientKey, Scope
from bridge.core.log.weights import CommandRefused
from bridge.core.membership.admission import Admitted, raft_id_of

CLIENTS_MAX = 256
"""Client keys of one farm, removed ones included."""
CLIENTS_OF_SERVER_MAX = CLIENTS_MAX // 4
"""Admitted client keys that one server has admitted."""


class Client(Struct, frozen=True):
    """One client key; its entries have an effect only while it is `admitted`."""

    name: str
    key: bytes
    scopes: tuple[Scope, ...]
    admitted: bool = True
    admitted_by: bytes = b""
    """The NodeId of the server that signed its last admission; empty below `BOUNDS_LEVEL`."""


class ClientChanged(Struct, frozen=True):
    """A client key was admitted, given other scopes, or removed."""

    node_id: bytes
    name: str
    scopes: tuple[str, ...]
    admitted: bool


def client_refusal(
    clients: Mapping[bytes, Client], admitted: Mapping[int, Admitted], entry: ClientKey, author: bytes | None = None
) -> str | None:
    """Return the reason to refuse this entry about a client key; None if it is accepted, also without a change.

    `author`: the server that signs it; None below `BOUNDS_LEVEL`.
    """
    if raft_id_of(admitted, entry.node_id) is not None:
        return f"the key {entry.node_id.hex()} is the identity of a server, and a server does not need a client key"
    if not entry.admitted:
        known = clients.get(entry.node_id)
        missing = f"no client key {entry.node_id.hex()} is admitted; `garlicfarm node clients` lists them"
        return missing if known is None or not known.admitted else None
    return _admission_refusal(clients, entry, author)


def _admission_refusal(clients: Mapping[bytes, Client], entry: ClientKey, author: bytes | None) -> str | None:
    if not entry.scopes:
        return f"the client key {entry.name} needs a scope: give it `weights`, `operator` or both"
    holder = next((each for each, client in clients.items() if client.admitted and client.name == entry.name), None)
    if holder is not None and holder != entry.node_id:
        return (
            f"the name {entry.name} belongs to the client key {holder.hex()}: remove that one first"
            f" (`garlicfarm node remove-client {entry.name}`), or give this one another name"
        )
    if author is not None:
        return _share_refusal(clients, entry, author)
    if len(clients) >= CLIENTS_MAX and entry.node_id not in clients:
        return f"{CLIENTS_MAX} client keys were admitted to this farm, which is the maximum: use one of them again"
    return None


def _share_refusal(clients: Mapping[bytes, Client], entry: ClientKey, author: bytes) -> str | None:
    admitted = {node_id: each for node_id, each in clients.items() if each.admitted and node_id != entry.node_id}
    if sum(each.admitted_by == author for each in admitted.values()) >= CLIENTS_OF_SERVER_MAX:
        return (
            f"the node {author.hex()} has admitted {CLIENTS_OF_SERVER_MAX} client keys, its limit: remove an unused"
            " key (`garlicfarm node clients`, `garlicfarm node remove-client NAME`)"
        )
    if len(admitted) >= CLIENTS_MAX:
        return f"{CLIENTS_MAX} client keys are admitted to this farm, which is the maximum: remove one first"
    return None


def change_client(
    clients: Mapping[bytes, Client], admitted: Mapping[int, Admitted], entry: ClientKey, author: bytes | None = None
) -> tuple[Mapping[bytes, Client], ClientChanged | CommandRefused | None]:
    """Return the table after one entry, and the change, if any. `author` as for `client_refusal`."""
    reason = client_refusal(clients, admitted, entry, author)
    if reason is not None:
        return clients, CommandRefused("client", reason)
    before = clients.get(entry.node_id)
    if not entry.admitted and before is not None:
        after = Client(before.name, before.key, before.scopes, admitted=False, admitted_by=before.admitted_by)
    else:
        after = Client(entry.name, entry.key, entry.scopes, admitted_by=author or b"")
    if after == before:
        return clients, None
    changed = ClientChanged(entry.node_id, after.name, tuple(each.value for each in after.scopes), after.admitted)
    if author is not None and entry.node_id not in clients and len(clients) >= CLIENTS_MAX:
        removed_id = min(node_id for node_id, each in clients.items() if not each.admitted)
        clients = {node_id: each for node_id, each in clients.items() if node_id != removed_id}
    return {**clients, entry.node_id: after}, changed
