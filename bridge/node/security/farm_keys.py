"""The farm's keys while a node runs: the key file's at first, then what the group has.

    farm key file ──▶ agent: merged with the ring that the state directory remembers ──▶ changes come by gossip
                                   │
                 what to show to other servers, what to accept from them: the credentials of every key that opens

The file stays as the operator wrote it, since nodes may share it, or another program may keep it. So it falls behind
when the keys change. That does no harm to a node which remembers the ring, and would keep out one that does not: hence
an alarm, raised and taken back by looking at the file from time to time.
"""

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import trio

from bridge.api.alarms import CORRECT_FILE, FARM_KEY_FILE
from bridge.node.events.alarms import Alarms
from bridge.node.security.key_files import KeyAccessError, KeyFileError, load_farm_key
from bridge.wire.keys.farm_key import FarmKey
from consensus.protocols.garlic_farm import Credentials
from gossip import Keyring

LOOK_EVERY_S: Final = 5.0


class FarmKeys:
    """The keys of one node's farm. `filed` is what the key file at `path` held at the start."""

    def __init__(
        self,
        path: Path,
        filed: FarmKey,
        keyring: Callable[[], Keyring | None] = lambda: None,
        cluster_id: Callable[[], bytes | None] = lambda: None,
    ) -> None:
        """`keyring`: the group's keys, if it can change them; `cluster_id`: the cluster that this node belongs to."""
        self.path = path
        self.filed = filed
        self._keyring = keyring
        self._cluster_id = cluster_id
        self._followed: Keyring | None = None
        """The keyring that `_current` and `_credentials` were made of."""
        self._current = filed
        self._credentials: tuple[Credentials, ...] = ()

    @property
    def exported(self) -> FarmKey:
        """The key file for other nodes: with the cluster that this node belongs to, if it does."""
        cluster_id = self._cluster_id()
        return self.current if cluster_id is None else replace(self.current, cluster_id=cluster_id)

    @property
    def current(self) -> FarmKey:
        """The key file as it would have to be now."""
        chain = self._keyring()
        if chain is not None and chain != self._followed:
            self._followed, self._current, self._credentials = chain, self.filed.following(chain), ()
        return self._current

    def credentials(self) -> tuple[Credentials, ...]:
        """What to show to another server: the sealing key's credentials, then those of the other open ones.

        When all keys were replaced at once, those of the one before come last: a server that missed it knows no other,
        and has to get the log in which the new one is. Their reader has shown the certificate of a member.
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
        """What another server must show: the credentials of any key that opens, so that a rotation stops no server."""
        return next((each.password for each in self._accepted() if each.user == user), None)

    @property
    def way_back(self) -> str:
        """What to do on a node whose keys the group has removed."""
        return (
            "on a node that is in the farm: `garlicfarm keys export FILE`; bring that file here, mode 0600, as "
            f"{self.path}; then restart this node"
        )

    def filed_now(self) -> FarmKey | KeyFileError:
        """What the key file holds by now, or why it cannot be used."""
        try:
            return load_farm_key(self.path)
        except KeyFileError as error:
            return error

    async def watch_file(self, alarms: Alarms) -> None:
        """Have an alarm stand while the file would keep a node out that has nothing but the file."""
        while True:
            self.judge_file(await trio.to_thread.run_sync(self.filed_now), alarms)
            await trio.sleep(LOOK_EVERY_S)

    def judge_file(self, filed: FarmKey | KeyFileError, alarms: Alarms) -> None:
        """Compare what the file holds with what the group has."""
        current, cluster_id, path = self.current, self._cluster_id(), shlex.quote(str(self.path))
        export = f"`garlicfarm keys export --replace {path}` writes the current one"
        if isinstance(filed, KeyAccessError):
            text = f"{filed}. The node continues with its present keys, and needs the file at its next start"
            alarms.set(FARM_KEY_FILE, text, CORRECT_FILE)
        elif isinstance(filed, KeyFileError):
            # --replace compares with the file that it replaces; there is none, or it is no farm key.
            # The error's own advice is for a first start: here a new key would make another farm.
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
            alarms.set(FARM_KEY_FILE, text, f"{export}; a node without that memory would be refused with the old file")
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
