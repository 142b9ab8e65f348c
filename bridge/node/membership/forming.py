"""The I/O of formation: reads gossip's members, writes promises to disk, announces this node's phase and the farm.

    members (gossip) ──▶ Formation.step ──▶ Persist ──▶ formation.json, fsynced ──▶ Persisted ──▶ …
                                       ├──▶ Advertise ──▶ this node's gossip metadata
                                       └──▶ Founded | KnowsCluster ──▶ `until_settled` returns

The file is in the directory of the identity key: `formation` is safe only if a node keeps both files or loses both.
"""

import shlex
import time
from collections.abc import Callable
from pathlib import Path
from random import SystemRandom
from typing import assert_never

import trio
from msgspec import Struct, field

from bridge.api.alarms import FORMATION
from bridge.api.events import FOUNDING_IGNORED
from bridge.core.formation import messages
from bridge.core.formation.formation import Formation, FormationTuning
from bridge.core.formation.founding import FormationNotice, FormationState, Founding
from bridge.core.formation.member import FarmMember
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from bridge.wire.membership.formation_state import (
    FORMATION_STATE_LIMIT_BYTES,
    FormationStateError,
    MadeBeforeError,
    decode_formation_state,
    encode_formation_state,
)
from consensus.storage import replace_file

FILE_NAME = "formation.json"
RECOVERY_FILE_NAME = "formation.recovering.json"
"""The new formation file while `recover` writes it. While it exists, the log in the directory is unreliable."""
IGNORED_NOTED_MAX = 64
"""Limit for the members whose ignored foundings are reported, once each: a holder of the farm key can invent
foundings."""


class UnusableFormationError(Exception):
    """The formation file is unusable; the text contains the remedy."""


def load_formation(state_dir: Path, node_id: bytes) -> FormationState:
    """Load the formation state of the node `node_id`; raise UnusableFormationError."""
    path = state_dir / FILE_NAME
    if (state_dir / RECOVERY_FILE_NAME).exists():
        raise UnusableFormationError(
            f"`garlicfarm recover` was interrupted in {state_dir}, and the log there may belong to the old or the new"
            f" farm: run `garlicfarm recover --from {shlex.quote(str(state_dir))}` again, which starts over with the"
            " old log",
        )
    try:
        with path.open("rb") as file:
            state = decode_formation_state(file.read(FORMATION_STATE_LIMIT_BYTES + 1))
    except FileNotFoundError:
        return FormationState()
    except MadeBeforeError as error:
        raise UnusableFormationError(f"{path} cannot be used: {error}") from error
    except (OSError, FormationStateError) as error:
        raise UnusableFormationError(
            f"{path} cannot be used ({error}): it has this node's promise, and the node must not promise again."
            " Restore the file, or give the node a new state directory and another name: it then joins as a new node",
        ) from error
    # An endorsement, unlike a promise, may have a set of founders without this node.
    own = [each.founders for each in (state.promise, state.founding, *state.withdrawn) if each is not None]
    if not all(node_id in founders for founders in own):
        raise UnusableFormationError(
            f"{path} was written by another identity than this node's ({node_id.hex()}): a promise is valid only with"
            " the identity key that made it. Restore that key, or give the node a new state directory and another"
            " name: it then joins as a new node",
        )
    return state


class _Request(Struct):
    event: messages.WithdrawRequested | messages.ConfirmRequested
    done: trio.Event = field(default_factory=trio.Event)
    refusal: str | None = None


class Forming:
    """The running formation of one node. `run` it once; `members_changed` may be called at any time."""

    def __init__(
        self,
        state_dir: Path,
        node_id: bytes,
        expect: int,
        durable: FormationState,
        *,
        advertise: Callable[[FormationNotice], None],
        alarms: Alarms,
        trace: EventLog,
        cluster_id: bytes | None = None,
        founders: frozenset[bytes] | None = None,
        tuning: FormationTuning | None = None,
    ) -> None:
        """Start from the durable state.

        `cluster_id` comes from the farm key file, if any; `founders` are the nodes that may create the farm, None for
        all.
        """
        self._path = state_dir / FILE_NAME
        self._core = Formation(
            node_id, expect, durable, SystemRandom(), cluster_id=cluster_id, founders=founders, tuning=tuning
        )
        self._trace = trace
        self._ignored: dict[bytes, bytes] = {}
        self._noted: set[bytes] = set()
        self.ignored_count = 0
        """The number of foundings announced by members that this node ignores."""
        self._advertise = advertise
        self._alarms = alarms
        self._members: tuple[FarmMember, ...] | None = None
        self._requests: list[_Request] = []
        self._work = trio.Event()
        self._settled = trio.Event()
        self.outcome: messages.Founded | messages.KnowsCluster | None = None
        """The result of formation; None while it runs."""

    @property
    def phase(self) -> messages.FormationPhase:
        """The phase of this node, derived from its durable state."""
        return self._core.phase

    @property
    def waiting_for(self) -> tuple[bytes, ...]:
        """Nodes whose promise or endorsement is still missing."""
        return self._core.waiting_for

    def members_changed(self, members: tuple[FarmMember, ...]) -> None:
        """Replace the view of the other members; only the last call counts."""
        self._members = members
        self._work.set()

    def withdrawal_refusal(self) -> str | None:
        """Return the reason why a withdrawal would be refused now; None if it would not."""
        return self._core.withdrawal_refusal()

    async def withdraw(self) -> str | None:
        """Withdraw this node's promise for an operator; return the reason if that is impossible."""
        return await self._request(messages.WithdrawRequested())

    async def confirm(self, cluster_id: bytes) -> str | None:
        """Store an operator's choice of this node's farm durably; return the reason if this is impossible."""
        return await self._request(messages.ConfirmRequested(cluster_id))

    async def _request(self, event: messages.WithdrawRequested | messages.ConfirmRequested) -> str | None:
        request = _Request(event)
        self._requests.append(request)
        self._work.set()
        await request.done.wait()
        return request.refusal

    @property
    def founding(self) -> Founding | None:
        """The founding of this node's present or future farm, from the durable state also before `run`."""
        return self._core.founding

    @property
    def cluster_id(self) -> bytes | None:
        """The cluster id of this node's present or future farm."""
        return None if self.founding is None else self.founding.cluster_id

    async def until_settled(self) -> messages.Founded | messages.KnowsCluster:
        """Wait until the farm is created, with this node as a founder or without it."""
        while self.outcome is None:
            await self._settled.wait()
        return self.outcome

    async def run(self) -> None:
        """Work until canceled; raise UnusableFormationError if a promise cannot be written."""
        await self._step(messages.Started())
        while True:
            deadline = self._core.deadline
            with trio.move_on_at(float("inf") if deadline is None else deadline / 1000) as waiting:
                await self._work.wait()
            if waiting.cancelled_caught:
                await self._step(messages.DeadlineReached())
            self._work = trio.Event()
            requests, self._requests = self._requests, []
            for request in requests:
                request.refusal = " ".join(await self._step(request.event)) or None
                request.done.set()
            if self._members is not None:
                members, self._members = self._members, None
                await self._step(messages.MembersChanged(members))

    async def _step(self, event: messages.Event) -> list[str]:
        """Carry out one event; return the reasons for a refused operator's request."""
        effects = self._core.step(event, _now_ms(), time.time_ns() // 1_000_000)
        # The consequences of an effect are appended after earlier effects, so that the latest notice is sent last.
        for effect in effects:
            effects += await self._carry_out(effect)
        self._count_ignored()
        if self._core.alarms:
            self._alarms.set(FORMATION, " ".join(self._core.alarms))
        else:
            self._alarms.clear(FORMATION)
        return [effect.text for effect in effects if isinstance(effect, messages.FormationRefused)]

    def _count_ignored(self) -> None:
        ignored = {node_id: founding.cluster_id for node_id, founding in self._core.ignored.items()}
        for node_id, cluster_id in ignored.items():
            if self._ignored.get(node_id) != cluster_id:
                self.ignored_count += 1
                if len(self._noted) < IGNORED_NOTED_MAX and node_id not in self._noted:
                    self._noted.add(node_id)
                    self._trace.append(FOUNDING_IGNORED, {"id": node_id.hex(), "cluster": cluster_id.hex()})
        self._ignored = ignored

    async def _carry_out(self, effect: messages.Effect) -> list[messages.Effect]:
        match effect:
            case messages.Persist(number, state):
                await self._keep(state)
                return self._core.step(messages.Persisted(number), _now_ms(), time.time_ns() // 1_000_000)
            case messages.Advertise(notice):
                self._advertise(notice)
            case messages.Founded() | messages.KnowsCluster():
                self.outcome = effect
                self._settled.set()
            case messages.Alarm() | messages.FormationRefused():
                pass  # Ignored here: the core has the active alarms, and a refusal is the reply to a request.
            case _:
                assert_never(effect)
        return []

    async def _keep(self, state: FormationState) -> None:
        try:
            await trio.to_thread.run_sync(replace_file, self._path, encode_formation_state(state))
        except OSError as error:
            raise UnusableFormationError(
                f"{self._path} cannot be written ({error.strerror or error}), and a node must not promise before the"
                " promise is stored: free some space or correct the permissions there, then start the node again",
            ) from error


def _now_ms() -> int:
    # Rounded up, so that a wake-up at a deadline is not one millisecond before it.
    return int(trio.current_time() * 1000 + 0.999)
