"""A rotation of the farm's keys from the first step to the last, through one node's control endpoint.

    install a new key ─▶ all open with it ─▶ use it ─▶ all seal with it
                      ─▶ remove the old key ─▶ all refuse it

Each step waits until every running member has confirmed and stored it, or, if forced, until a timeout. A member that
could not store the new key would return with the old key after a restart. After the removal of the old key, the others
would refuse this member. An interruption before the last step does not isolate a member, because the old key still
opens datagrams. The same command continues an interrupted rotation. For this it compares the epochs (logical times) of
the sealing key and of the newest other open key. If this other key was made after the choice of the sealing key, the
command continues with it. If it was made before the sealing key, it is the old key, and only its removal is missing.
Otherwise an earlier rotation made it and did not use it, so the command makes another key.
"""

from collections.abc import Callable
from functools import partial

import trio
from msgspec import Struct

from bridge.api.control import FarmKeyState, FarmKeyView, KeysAnswer
from bridge.api.control_routes import KEYS, KEYS_INSTALL, KEYS_REMOVE, KEYS_USE
from bridge.api.outputs import RotationOutput
from bridge.api.requests import KeyRequest
from bridge.node.control.client import ControlClient, ControlError
from consensus import counted

QUERY_INTERVAL_S = 0.5
_AGAIN = "run `garlicfarm keys rotate` again: it continues from here"


class RotationError(Exception):
    """The rotation stopped; the text has the reason and the remedy."""


class Rotation(Struct, eq=False, kw_only=True):
    """One rotation. `report` gets a line at each step, and while a step waits."""

    client: ControlClient
    report: Callable[[str], None]
    timeout_s: float
    force: bool

    async def run(self, before: KeysAnswer) -> RotationOutput:
        """Run all steps; raise RotationError or ControlError."""
        self._check_absent(before)
        key = await self._new_key(before)
        if before.primary != key:
            missing = partial(_without, key)
            await self._until(f"key {key} is installed", missing, "The old key is still in use")
            await self.client.call(KEYS_USE, KeyRequest(key, self.force))
        used = await self._until(f"key {key} is in use", partial(_not_using, key), "The old key still opens datagrams")
        removed = await self._remove_older(used, key)
        done = await self._until(
            "the old key is refused", _behind, "The members that did not confirm use the new key already"
        )
        left_out = (*done.absent, *done.behind, *done.silent) if self.force else ()
        return RotationOutput(True, key, done.epoch, done.members, removed, left_out, done.unstored)  # noqa: FBT003 - the documented key

    def _check_absent(self, now: KeysAnswer) -> None:
        if now.absent and not self.force:
            raise RotationError(
                f"nothing was changed: {_listed(now.absent)} down, and would miss the new key. Start every such node"
                " first; or rotate with --force, and copy the current key file (`garlicfarm keys export FILE`) to it"
                " before its next start"
            )

    async def _new_key(self, before: KeysAnswer) -> str:
        """Return the key to rotate to: the key of an unfinished rotation, otherwise a new one."""
        installed = [each for each in before.keys if each.state is FarmKeyState.INSTALLED]
        newest = max(installed, key=lambda each: each.since, default=None)
        if newest is not None and newest.since > before.epoch:
            self.report(f"Continuing with key {newest.key_id}, the newest key of the farm.")
            return newest.key_id
        if newest is not None and newest.since < _find(before, before.primary).since:
            self.report(
                f"Continuing after an interrupted rotation: key {before.primary} is in use, and the old key still"
                " opens datagrams."
            )
            return before.primary
        key = (await self.client.call(KEYS_INSTALL)).key
        self.report(f"Key {key} is created and installed.")
        return key

    async def _remove_older(self, now: KeysAnswer, key: str) -> tuple[str, ...]:
        since = _find(now, key).since
        installed = (each for each in now.keys if each.state is FarmKeyState.INSTALLED)
        older = tuple(each.key_id for each in installed if each.since <= since)
        for each in older:
            await self.client.call(KEYS_REMOVE, KeyRequest(each, self.force))
            self.report(f"Key {each} is removed.")
        return older

    async def _until(self, what: str, behind: Callable[[KeysAnswer], tuple[str, ...]], standing: str) -> KeysAnswer:
        """Query until all members have confirmed the step; after the timeout end the rotation, unless forced."""
        deadline = trio.current_time() + self.timeout_s
        reported: tuple[str, ...] = ()
        while True:
            now = await self.client.call(KEYS)
            missing = tuple(dict.fromkeys(behind(now)))
            if not missing:
                self.report(f"  {what} at {now.members} of {counted(now.members, 'member')}")
                return now
            if trio.current_time() >= deadline:
                break
            if missing != reported:
                reported = missing
                confirmed = f"{now.members - len(missing)} of {counted(now.members, 'member')}"
                self.report(f"  {what} at {confirmed}; missing: {_names(missing)}")
            await trio.sleep(QUERY_INTERVAL_S)
        if self.force:
            self.report(f"  continuing without {_names(missing)}")
            return now
        if set(missing) <= set(now.unstored or ()):
            raise RotationError(
                f'{_names(missing)} could not store the keys at the step "{what}", and would return with older'
                f" keys after a restart. {standing}; the farm continues to work. Do not restart {_names(missing)}."
                " Repair the disk there (alarm `keyring-not-stored`): the node stores the keys automatically within a"
                f" minute. Then {_AGAIN}. If it has to restart before that, first run `garlicfarm keys export FILE`"
                " here, and copy that file to it as its key file"
            )
        raise RotationError(
            f"after {self.timeout_s:g} s {_names(missing)} did not confirm that {what}. {standing}; the farm"
            f" continues to work. Check {_names(missing)} (`garlicfarm members`, `garlicfarm keys list`), then"
            f" {_AGAIN}"
        )


async def rotate(
    client: ControlClient, report: Callable[[str], None], timeout_s: float, *, force: bool
) -> RotationOutput:
    """Rotate. After the first query, a missing response ends the rotation like a refusal, with the remedy."""
    before = await client.call(KEYS)
    try:
        return await Rotation(client=client, report=report, timeout_s=timeout_s, force=force).run(before)
    except KeyboardInterrupt:
        report(f"Interrupted. The completed steps stay in effect; {_AGAIN}")
        raise
    except ControlError as error:
        raise RotationError(
            f"{error}. The completed steps stay in effect, and the farm continues to work; correct the cause, then"
            f" {_AGAIN}, at any node"
        ) from error


def _find(now: KeysAnswer, key: str) -> FarmKeyView:
    for each in now.keys:
        if each.key_id == key:
            return each
    raise RotationError(
        f"key {key} is no longer in the ring: another operator changes keys; see `garlicfarm keys list`"
    )


def _behind(now: KeysAnswer) -> tuple[str, ...]:
    return (*now.behind, *now.silent, *(now.unstored or ()))


def _without(key: str, now: KeysAnswer) -> tuple[str, ...]:
    found = _find(now, key)
    if found.state is FarmKeyState.REMOVED:
        raise RotationError(f"another operator removed key {key} during this rotation; see `garlicfarm keys list`")
    return (*found.missing, *_behind(now))


def _not_using(key: str, now: KeysAnswer) -> tuple[str, ...]:
    if now.primary != key:
        raise RotationError(
            f"another rotation at the same time chose key {now.primary}; {key} stays installed and unused. Run"
            " `garlicfarm keys list`, and remove the unused key"
        )
    return _behind(now)


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names)


def _listed(names: tuple[str, ...]) -> str:
    return f"{_names(names)} {'is' if len(names) == 1 else 'are'}"
