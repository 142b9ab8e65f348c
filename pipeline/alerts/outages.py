"""The alerts and their due messages: values alone, without a clock, a table or a network.

                     a server is down                      healthy for `--alert-keep-firing`, or removed
    (no alert) ─────────────────────▶ firing ──────────────────────────────────────────────▶ resolved
                                        │ one message for `unhealthy`, one more if the server becomes `silent`
                                        └ held back while its server is silenced or removed

A server has at most one firing alert. The alert is compared with the server's current state, not with each change. So a
repeated batch, a restarted run and a backlog of days do not add messages. When a receiver works again, it gets the
missed messages that still apply. A server that flaps stays in one outage, which counts its failures.

A message's id contains a hash of the farm, the server, the beginning of the outage, and the number of earlier alerts of
this outage. The run after a killed one may repeat a message with the same id, so a receiver can drop it. A message has
the form of Alertmanager's webhook (version 4), which many receivers accept.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

FIRING, RESOLVED = "firing", "resolved"
HEALTHY, UNHEALTHY, SILENT = "healthy", "unhealthy", "silent"
ALERT_NAME = "GarlicFarmServer"
ID_CHARACTERS = 24
NEVER = "0001-01-01T00:00:00Z"
"""Alertmanager's time for an alert that has not ended."""
KEPT_MAX = 10_000
"""The limit of alerts in the table: all firing ones, and the newest of the others."""


@dataclass(frozen=True, slots=True)
class FailedServer:
    """A server that is or was down, as a row of `servers.sql`."""

    farm: str
    server_id: int
    name: str | None
    state: str
    began_at: datetime
    failures: int
    was_silent: bool
    reason: str
    ended_at: datetime | None
    gone: str | None
    farm_name: str | None = None
    healthy_before: datetime | None = None
    """The time when the server became healthy before this outage; None if unknown."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One outage of one server, and the delivered messages about it, as `RECEIVER WORD`.

    `farm_name`: the farm's name in the file of several farms when the outage began. Receivers distinguish alerts by
    this label, so it stays even if the file renames the farm.
    """

    id: str
    farm: str
    server_id: int
    name: str | None
    status: str
    state: str
    began_at: datetime
    ended_at: datetime | None
    failures: int
    was_silent: bool
    reason: str
    held_back: str | None = None
    delivered: tuple[str, ...] = ()
    farm_name: str | None = None

    @property
    def key(self) -> tuple[str, int]:
        """The farm and the server."""
        return self.farm, self.server_id

    def due(self, receiver: str) -> str | None:
        """Return the due message to this receiver: `unhealthy`, `silent`, `resolved`, or None."""
        sent = {each.partition(" ")[2] for each in self.delivered if each.partition(" ")[0] == receiver}
        if self.status == RESOLVED:
            return RESOLVED if sent and RESOLVED not in sent else None
        if self.held_back is not None or SILENT in sent:
            return None
        if self.was_silent:
            return SILENT
        return None if UNHEALTHY in sent else UNHEALTHY

    def with_delivered(self, receiver: str, word: str) -> "Alert":
        """Return the alert with this message delivered."""
        return replace(self, delivered=(*self.delivered, f"{receiver} {word}"))


def updated_alerts(
    known: Sequence[Alert], servers: Iterable[FailedServer], silenced: Mapping[tuple[str, int], str], now: datetime
) -> list[Alert]:
    """Return the alerts for the current servers, oldest first; `silenced`: the reasons to hold alerts back."""
    begin_counts = Counter((each.key, each.began_at) for each in known)
    firing = {each.key: each for each in known if each.status == FIRING}
    over = [each for each in known if each.status == RESOLVED]
    still: list[Alert] = []
    for server in servers:
        key = server.farm, server.server_id
        alert = firing.pop(key, None)
        if alert is not None and server.healthy_before is not None and alert.began_at < server.healthy_before:
            # This is a new outage: between the two outages the server was healthy, but was not checked then.
            over.append(_recovered(alert, server.healthy_before))
            alert = None
        if alert is None and server.ended_at is not None:
            continue
        if alert is None:
            alert = _new(server, begin_counts[key, server.began_at])
        alert = replace(
            alert,
            name=server.name or alert.name,
            state=server.state,
            failures=max(alert.failures, server.failures),
            was_silent=alert.was_silent or server.was_silent,
            reason=server.reason,
            held_back=server.gone or silenced.get(key) or (alert.held_back if server.state == HEALTHY else None),
        )
        if server.ended_at is not None:
            over.append(replace(alert, status=RESOLVED, ended_at=server.ended_at, held_back=None))
        elif server.gone is not None and alert.delivered:
            over.append(replace(alert, status=RESOLVED, ended_at=now, reason=server.gone))
        else:
            still.append(alert)
    # These servers are healthy, and their history no longer contains the outage.
    over += [_recovered(each, now) for each in firing.values()]
    over.sort(key=lambda each: (each.began_at, each.id))
    room = max(0, KEPT_MAX - len(still))
    return sorted([*over[len(over) - min(room, len(over)) :], *still], key=lambda each: (each.began_at, each.id))


def _recovered(alert: Alert, ended_at: datetime) -> Alert:
    return replace(alert, status=RESOLVED, state=HEALTHY, ended_at=ended_at, held_back=None)


def message_id(alert: Alert, word: str) -> str:
    """Return the permanent id of the message."""
    return f"{alert.id}-{word}"


def message(alert: Alert, word: str, gap: str = "") -> bytes:
    """Return JSON, in ASCII: Alertmanager's webhook of version 4 with one alert, and the message's `id`.

    `gap`: the entries that the tables lack since the beginning of the outage, as text.
    """
    farm = alert.farm_name or alert.farm
    labels = {"alertname": ALERT_NAME, "farm": farm, "cluster": alert.farm, "server": str(alert.server_id)}
    named = f"server {alert.server_id}" + (f" ({alert.name})" if alert.name else "")
    named += f" of {alert.farm_name}" if alert.farm_name else ""
    status = RESOLVED if word == RESOLVED else FIRING
    flapped = f"; {alert.failures} failures since {_text(alert.began_at)}" if alert.failures > 1 else ""
    annotations = {
        "summary": f"{named} {_verdict(alert, word)}",
        "description": alert.reason + flapped + (gap and f"; this alert may be wrong: {gap}"),
        "state": alert.state,
        "failures": str(alert.failures),
        "name": alert.name or "",
        "gap": gap,
    }
    ended = alert.ended_at if word == RESOLVED else None
    body = {
        "version": "4",
        "id": message_id(alert, word),
        "groupKey": "{}:{" + ", ".join(f"{name}={json.dumps(value)}" for name, value in labels.items()) + "}",
        "truncatedAlerts": 0,
        "status": status,
        "receiver": "garlicfarm-pipeline",
        "groupLabels": labels,
        "commonLabels": labels,
        "commonAnnotations": annotations,
        "externalURL": "",
        "alerts": [
            {
                "status": status,
                "labels": labels,
                "annotations": annotations,
                "startsAt": _text(alert.began_at),
                "endsAt": NEVER if ended is None else _text(ended),
                "generatorURL": "",
                "fingerprint": alert.id,
            }
        ],
    }
    return json.dumps(body).encode("ascii")


def _verdict(alert: Alert, word: str) -> str:
    """Return the message's verdict about the server."""
    if word != RESOLVED:
        return f"{'was' if alert.state == HEALTHY else 'is'} {word}"
    return "is healthy again" if alert.state == HEALTHY else f"is {alert.state} and {alert.reason}"


def server_of(row: Mapping[str, Any]) -> FailedServer:
    """Return a row of `servers.sql` as an object."""
    return FailedServer(**row)


def _new(server: FailedServer, before: int) -> Alert:
    """Create an alert; `before` counts the outage's earlier alerts, each ended by a removal or a departure."""
    named = json.dumps([server.farm, server.server_id, _text(server.began_at), before])
    return Alert(
        id=hashlib.sha256(named.encode()).hexdigest()[:ID_CHARACTERS],
        farm=server.farm,
        server_id=server.server_id,
        name=server.name,
        status=FIRING,
        state=server.state,
        began_at=server.began_at,
        ended_at=None,
        failures=server.failures,
        was_silent=server.was_silent,
        reason=server.reason,
        farm_name=server.farm_name,
    )


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
