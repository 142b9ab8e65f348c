"""The farm's keys while a node runs: at first from the key file, later from the group.

    farm key file ──▶ agent: merged with the ring in the state directory ──▶ changes arrive by gossip
                                   │
                 credentials to send to other servers, and to accept: derived from every key that opens datagrams

The file is never changed, since nodes or another program may share it. So it is outdated after a key change. An
outdated file does not affect a node with a stored ring, but a node without a stored ring could not join with it. So the
file is checked periodically, and an alarm is active while it is outdated.
"""

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import trio
from msgspec.structs import replace

from bridge.api.alarms import CORRECT_FILE, FARM_KEY_FILE
from bridge.node.events.alarms import Alarms
from bridge.node.security.key_files import ChangedFiles, KeyAccessError, KeyFileError, load_farm_key
from bridge.wire.keys.farm_key import FarmKey
from consensus import sleep_to_tick
from consensus.protocols.garlic_farm import Credentials
from gossip import Keyring
from gossip.node import known_keyring

LOOK_EVERY_S: Final = 10.0


def with_stored_keys(filed: FarmKey, state_dir: Path) -> FarmKey:
    """Return the content of a key file with the keys that a node has stored since; raise StateError.

    After a change of the keys the file is outdated until an operator replaces it.
    """
    stored = known_keyring(state_dir, filed.label)
    return filed if stored is None else filed.following(filed.key_ring.merge(stored))


class FarmKeys:
    """The keys of one node's farm. `filed` is the content of the key file at `path` at the start."""

    def __init__(
        self,
        path: Path,
        filed: FarmKey,
        keyring: Callable[[], Keyring | None] = lambda: None,
        cluster_id: Callable[[], bytes | None] = lambda: None,
    ) -> None:
        """Start with the file's keys.

        `keyring` returns the group's keys, if it can change them; `cluster_id` returns this node's cluster.
        """
        self.path = path
        self.filed = filed
        self._files = ChangedFiles(partial(load_farm_key, path), path)
        self._keyring = keyring
        self._cluster_id = cluster_id
        self._followed: Keyring | None = None
        """The source keyring of `_current` and `_credentials`."""
        self._current = filed
        self._credentials: tuple[Credentials, ...] = ()

    @property
    def exported(self) -> FarmKey:
        """The key file for other nodes, with this node's cluster if it has one."""
        cluster_id = self._cluster_id()
        return self.current if cluster_id is None else replace(self.current, cluster_id=cluster_id)

    @property
    def current(self) -> FarmKey:
        """The present content that the key file should have."""
        chain = self._keyring()
        if chain is not None and chain != self._followed:
            self._followed, self._current, self._credentials = chain, self.filed.following(chain), ()
        return self._current

    def credentials(self) -> tuple[Credentials, ...]:
        """Return the credentials for other servers: the sealing key's first, then the other open keys'.

        After a replacement of all keys, the previous key's credentials come last. A server that missed the replacement
        has only those, and must receive the log with the new key. They are sent only to a server with the certificate
        of a member.
        """
        current = self.current
        earlier = current.earlier_credentials[:1] if current.era else ()
        return (*self._accepted(), *(Credentials(each.username, each.password) for each in earlier))

    def _accepted(self) -> tuple[Credentials, ...]:
        current = self.current
        if not self._credentials:
            self._credentials = tuple(Credentials(each.username, each.password) for each in current.digest_credentials)
        return self._credentials

    def password_of(self, user: str) -> str | None:
        """Return the password of a user of any key that opens, so that a rotation does not stop a server."""
        return next((each.password for each in self._accepted() if each.user == user), None)

    @property
    def way_back(self) -> str:
        """The remedy for a node whose keys the group has removed."""
        return (
            "on a node that is in the farm: `garlicfarm keys export FILE`; copy that file here, mode 0600, as "
            f"{self.path}; then restart this node"
        )

    def filed_now(self) -> FarmKey | KeyFileError:
        """Return the present content of the key file, or the error that makes it unusable."""
        try:
            return self._files.read()
        except KeyFileError as error:
            return error

    async def watch_file(self, alarms: Alarms) -> None:
        """Keep an alarm active while the file would exclude a node without a stored ring."""
        while True:
            self.judge_file(await trio.to_thread.run_sync(self.filed_now), alarms)
            await sleep_to_tick(LOOK_EVERY_S)

    def judge_file(self, filed: FarmKey | KeyFileError, alarms: Alarms) -> None:
        """Compare the file with the group's keys, and set or clear the alarm."""
        current, cluster_id = self.current, self._cluster_id()
        path = shlex.quote(str(self.path))
        export = f"`garlicfarm keys export --replace {path}` writes the current one"
        if isinstance(filed, KeyAccessError):
            text = f"{filed}. The node continues with its present keys, and needs the file at its next start"
            alarms.set(FARM_KEY_FILE, text, CORRECT_FILE)
        elif isinstance(filed, KeyFileError):
            # Do not advise `--replace`, which needs a valid old file. The error's own remedy is for a first start: it
            # would make a new key, and so another farm.
            what = "is no longer a farm key file" if self.path.exists() else "is missing"
            text = f"the farm key file {self.path} {what}: this node could not start again"
            alarms.set(FARM_KEY_FILE, text, self._written_anew())
        elif filed.label != current.label:
            text = (
                f"the farm key file {self.path} belongs to another farm, {filed.label.hex()}: this node could not"
                " start again with it"
            )
            alarms.set(FARM_KEY_FILE, text, self._written_anew())
        elif filed.age < current.age:
            text = (
                f"the farm's keys have epoch {current.epoch}, the farm key file {self.path} has epoch {filed.epoch}:"
                " this node continues with the later keys from its state directory"
            )
            alarms.set(FARM_KEY_FILE, text, f"{export}; a node without stored keys would be refused with the old file")
        elif filed.age > current.age:
            text = f"the farm key file {self.path} has epoch {filed.epoch}, this node's ring epoch {current.epoch}"
            alarms.set(
                FARM_KEY_FILE, text, "restart this node: it uses the later keys, and sends them to the other nodes"
            )
        elif filed.cluster_id not in {None, cluster_id} and cluster_id is not None:
            text = (
                f"the farm key file {self.path} names another cluster than this node's cluster, {cluster_id.hex()}: a"
                " new node with this file would never join it"
            )
            alarms.set(FARM_KEY_FILE, text, export)
        else:
            alarms.clear(FARM_KEY_FILE)

    def _written_anew(self) -> str:
        path = shlex.quote(str(self.path))
        away = f"`mv {path} {path}.old`, then " if self.path.exists() else ""
        return f"{away}`garlicfarm keys export {path}` writes the current one"
