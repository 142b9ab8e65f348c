"""The meaning of the setting `timing` for every part that waits for another server.

Over I2P a reply takes one to several seconds, and some tens of kilobytes a second are a high rate. A first connection
takes half a minute, because tunnels are built and a LeaseSet is looked up. Raft requires that a round of messages is
much shorter than the election timeout, and that elections are rare compared with their duration. So the timeout is 30
to 60 s, and all limits for unresponsive servers are longer than on a LAN. A chunk of a log or snapshot must arrive
within one reply timeout.

On a LAN a heartbeat is sent each 400 ms, compared with 100 ms in `consensus.lan`. Even so, heartbeats take a quarter of
an idle node's processor time, and a node may be a small computer. The shortest election timeout is 1 s. TCP does not
lose a heartbeat; a lost packet delays it by 200 ms or more, until TCP sends it again. A server that still misses the
leader for an election timeout begins a pre-vote, which every server in contact with the leader refuses.
"""

from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from bridge.core.formation.formation import FormationTuning
from bridge.node.settings.choices import Timing
from consensus import Options, i2p, lan, local
from consensus.protocols.garlic_farm import ClientOptions, ConnectionLimits, ConnectionOptions, LinkOptions

_LAN_HEARTBEAT_MS: Final = 400


class Patience(Struct, frozen=True, kw_only=True):
    """Limits in seconds for a submission, for applying committed entries here, and for one request to the leader."""

    submit_s: float = 15.0
    apply_s: float = 5.0
    client_s: float = 5.0


class Profile(Struct, frozen=True, kw_only=True):
    """All times of one `timing`.

    A member is healthy up to `contact_within_ms` after its last reply to the leader. A new node must be alive for
    `settle_ms` before the leader admits, adds or promotes it. `introduce_s` are the periods of introductions without
    gossip, normally and until the farm exists.
    """

    raft: Options
    dial_s: float = 5.0
    links: LinkOptions = field(default_factory=LinkOptions)
    client: ClientOptions = field(default_factory=ClientOptions)
    patience: Patience = field(default_factory=Patience)
    connection_limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    conversation: ConnectionOptions = field(default_factory=ConnectionOptions)
    formation: FormationTuning = field(default_factory=FormationTuning)
    contact_within_ms: int = 3_000
    settle_ms: int = 10_000
    introduce_s: tuple[float, float] = (10.0, 1.0)


def profile_of(timing: Timing) -> Profile:
    """Return the profile of a `timing`."""
    match timing:
        case Timing.LAN:
            return Profile(raft=replace(lan(), heartbeat_ms=_LAN_HEARTBEAT_MS))
        case Timing.LOCAL:
            return Profile(
                raft=local(),
                formation=FormationTuning(settle_ms=300),
                settle_ms=1_000,
                introduce_s=(1.0, 0.25),
            )
        case Timing.I2P:
            return _i2p()


def _i2p() -> Profile:
    return Profile(
        raft=i2p(),
        dial_s=60.0,
        links=LinkOptions(
            reply_timeout_s=40.0,
            backoff_first_s=1.0,
            backoff_longest_s=30.0,
            unsent_lifetime_s=10.0,
            vote_lifetime_s=60.0,
            owing_s=10.0,
            overtaking_s=4.0,
        ),
        client=ClientOptions(reply_timeout_s=60.0, backoff_first_s=1.0, backoff_longest_s=15.0),
        # `submit_s` and `apply_s` together are shorter than the time that a command waits for its node. After that
        # time, the request id permits a repetition.
        patience=Patience(submit_s=20.0, apply_s=8.0, client_s=20.0),
        connection_limits=ConnectionLimits(handshake_s=45.0),
        conversation=ConnectionOptions(
            idle_s=900.0, stalled_s=60.0, request_s=120.0, least_bytes_per_s=4 * 1024, answer_s=120.0
        ),
        formation=FormationTuning(settle_ms=60_000, patience_ms=900_000),
        contact_within_ms=45_000,
        settle_ms=120_000,
        introduce_s=(60.0, 15.0),
    )
