"""The key that signs a master destination's structures on this node, its renewal, and the alarm before it ends.

A transient key ends after some days (30 by default). The operator replaces its file while the node runs. Before each
report, the node checks if the file has changed. It reads a changed file, and uses a valid new key from then on. An
unusable file, a key of another master or an expired key only sets an alarm: the present key remains in use.
"""

import logging
from pathlib import Path

from msgspec import Struct

from bridge.api.alarms import CORRECT_FILE
from bridge.core.log.records import PublishConfig
from bridge.node.events.alarms import SharedAlarm
from bridge.node.security.key_files import KeyAccessError, KeyFileError, Stamp, load_signing_key, stamp_of
from bridge.wire.i2p.destination_keys import TRANSIENT_ALARM_S, SigningKey
from consensus import counted

LOG = logging.getLogger(__name__)
DAY_S = 86_400

_READ_AGAIN: Stamp = (-1, -1, -1, -1, -1)
"""A stamp that differs from the stamp of every file."""


class _Filed(Struct, frozen=True):
    """The result of reading a key file: the key, or the reason why it is unusable."""

    stamp: Stamp
    key: SigningKey | None = None
    fault: str = ""
    action: str | None = None
    """The remedy for the fault, unless a new key is needed."""


class PublishingKey:
    """One master's key on this node, its file, if any, and the operator's permission to publish."""

    def __init__(
        self,
        key: SigningKey,
        path: Path | None = None,
        stamp: Stamp = None,
        publish: PublishConfig = PublishConfig.AUTO,
    ) -> None:
        self.key = key
        self.master = key.destination.base64
        """The master destination, in I2P's base64. `renew` does not change it."""
        self.master_hash = key.destination.hash
        self.address = key.destination.address
        """The master's `.b32.i2p` address."""
        self.publish = publish
        self.path = path
        self.fault: str | None = None
        """The reason why the file's present content is not used."""
        self.action: str | None = None
        self._stamp = stamp

    @classmethod
    def load(cls, path: Path, publish: PublishConfig = PublishConfig.AUTO) -> "PublishingKey":
        """Read the file; raise KeyFileError."""
        stamp = stamp_of(path)
        loaded = cls(load_signing_key(path), path, stamp, publish)
        loaded.warn_of_master_key()
        return loaded

    def warn_of_master_key(self) -> None:
        """Log a warning if this is more than a transient key."""
        if self.key.offline is None:
            LOG.warning(
                "%s contains the master's own private key: a thief of this machine controls the farm's address"
                " permanently; use a transient key instead (`garlicfarm help signing-keys`)",
                self.path,
            )

    def renew(self, now_s: int) -> bool:
        """Use a new key in the file, and return True; `fault` is the reason if the key was rejected."""
        path = self.path
        if path is None:
            return False
        filed = _read_if_changed(path, self._stamp)
        if filed is None:
            return False
        # Read an expired key or an unusable file again: the clock may be corrected, and an error may be temporary.
        is_valid = filed.key is not None and filed.key.can_sign_until_s > now_s
        self._stamp = filed.stamp if is_valid else _READ_AGAIN
        self.fault, self.action = self._fault_of(filed, now_s), filed.action
        if filed.key is None or self.fault is not None:
            return False
        # Two transient keys of one master differ in their signatures by the master.
        same = (filed.key.offline, filed.key.demo) == (self.key.offline, self.key.demo)
        self.key = filed.key
        if not same:
            self.warn_of_master_key()
        return not same

    def _fault_of(self, filed: _Filed, now_s: int) -> str | None:
        if filed.key is None:
            return filed.fault
        if filed.key.destination != self.key.destination:
            return f"{self.path} is a key of another master, {filed.key.destination.address}"
        if filed.key.can_sign_until_s <= now_s:
            return f"the key in {self.path} has ended already"
        return None


def judge_key(key: PublishingKey, now_s: int, alarm: SharedAlarm) -> None:
    """Keep the alarm active while the key ends soon, or while the file lacks a usable key."""
    if key.fault is None:
        alarm.clear(f"{key.address} file")
    else:
        alarm.set(f"{key.address} file", f"{key.fault}: this node continues with its present key", key.action)
    left_s = key.key.can_sign_until_s - now_s
    if left_s >= TRANSIENT_ALARM_S:
        alarm.clear(f"{key.address} end")
    else:
        ends = f"ends in {counted(left_s // DAY_S, 'day')}; then it" if left_s > 0 else "has ended: it"
        alarm.set(f"{key.address} end", f"this node's signing key {ends} cannot publish any more")


def _read_if_changed(path: Path, stamp: Stamp) -> _Filed | None:
    # The stamp is taken before the file is read, so that the next check detects a replacement during the read.
    seen = stamp_of(path)
    if seen == stamp:
        return None
    try:
        return _Filed(seen, load_signing_key(path))
    except KeyAccessError as error:
        return _Filed(seen, fault=str(error), action=CORRECT_FILE)
    except KeyFileError as error:
        return _Filed(seen, fault=str(error))
