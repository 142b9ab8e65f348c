"""The file of invitations: each is redeemed within its limit, also after a restart and with a wrong clock."""

from pathlib import Path

import msgspec
import pytest

from bridge.node.inviting.invitations import (
    APPROVAL_LIFETIME_MS,
    FILE_NAME,
    INVITATIONS_MAX,
    LIFETIME_LIMIT_S,
    USES_MAX,
    Invitations,
    Joiner,
    RedeemError,
    UnusableInvitationsError,
)
from bridge.wire.keys.invitation import InvitationError, RefusalCode
from tests.effort import each_case

HOUR_S = 3600


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_ms = 1_800_000_000_000
        self.monotonic_s = 1000.0

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


def opened(directory: Path, clock: Clock) -> Invitations:
    return Invitations(directory, clock, monotonic_s=lambda: clock.monotonic_s)


def joiner(number: int) -> Joiner:
    return Joiner(bytes([number]) * 32, f"site-{number}")


def refusal(invitations: Invitations, secret: bytes, who: Joiner) -> RefusalCode:
    with pytest.raises(RedeemError) as caught:
        invitations.redeem(secret, who)
    return caught.value.code


def test_token_is_redeemed_once(tmp_path: Path, clock: Clock) -> None:
    invitations = opened(tmp_path, clock)
    made, secret = invitations.create(1, HOUR_S, 7671)
    assert invitations.open_uses == 1
    assert invitations.redeem(secret, joiner(1)).id == made.id
    assert invitations.open_uses == 0
    assert refusal(invitations, secret, joiner(2)) is RefusalCode.USED


def test_taken_name_does_not_spend_use(tmp_path: Path, clock: Clock) -> None:
    invitations = opened(tmp_path, clock)
    _, secret = invitations.create(1, HOUR_S, 7671)
    for shown, code in ((secret, RefusalCode.NAME_TAKEN), (bytes(16), RefusalCode.UNKNOWN)):
        with pytest.raises(RedeemError) as caught:
            invitations.redeem(shown, joiner(1), is_name_taken=True)
        assert caught.value.code is code
    assert invitations.open_uses == 1


def test_same_identity_repeats_its_request(tmp_path: Path, clock: Clock) -> None:
    invitations = opened(tmp_path, clock)
    _, secret = invitations.create(2, HOUR_S, 7671)
    for _ in range(3):
        assert len(invitations.redeem(secret, joiner(1)).uses) == 1
    invitations.redeem(secret, joiner(2))
    assert len(invitations.redeem(secret, joiner(1)).uses) == 2
    assert refusal(invitations, secret, joiner(3)) is RefusalCode.USED
    clock.now_ms += HOUR_S * 1000
    assert refusal(invitations, secret, joiner(1)) is RefusalCode.USED


def test_use_is_on_disk_before_redeem_returns(tmp_path: Path, clock: Clock) -> None:
    invitations = opened(tmp_path, clock)
    _, secret = invitations.create(1, HOUR_S, 7671)
    invitations.redeem(secret, joiner(1))
    after_kill = opened(tmp_path, clock)
    assert refusal(after_kill, secret, joiner(2)) is RefusalCode.USED
    assert [use.name for use in after_kill.waiting()] == ["site-1"]
    assert after_kill.port == 7671


def test_use_that_cannot_be_stored_is_not_spent(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    invitations = opened(tmp_path, clock)
    _, secret = invitations.create(1, HOUR_S, 7671)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("bridge.node.inviting.invitations.replace_file", full)
        with pytest.raises(OSError, match="No space"):
            invitations.redeem(secret, joiner(1))
    assert invitations.open_uses == 1
    invitations.redeem(secret, joiner(2))


def test_expired_revoked_and_unknown_are_refused(tmp_path: Path, clock: Clock) -> None:
    invitations = opened(tmp_path, clock)
    _, expired = invitations.create(1, 60, 7671)
    made, revoked = invitations.create(1, HOUR_S, 7671)
    clock.now_ms += 60_000
    assert refusal(invitations, expired, joiner(1)) is RefusalCode.EXPIRED
    assert invitations.revoke(made.id) is not None
    assert refusal(invitations, revoked, joiner(1)) is RefusalCode.REVOKED
    assert refusal(invitations, bytes(16), joiner(1)) is RefusalCode.UNKNOWN
    assert invitations.revoke("00000000") is None
    assert not invitations.is_listening


def test_revocation_stops_repetition(tmp_path: Path, clock: Clock) -> None:
    invitations = opened(tmp_path, clock)
    made, secret = invitations.create(1, HOUR_S, 7671)
    invitations.redeem(secret, joiner(1))
    invitations.revoke(made.id)
    assert refusal(invitations, secret, joiner(1)) is RefusalCode.REVOKED


def test_clock_set_back_does_not_prolong_lifetime(tmp_path: Path, clock: Clock) -> None:
    invitations = opened(tmp_path, clock)
    _, secret = invitations.create(1, 60, 7671)
    clock.now_ms += 60_000
    invitations.create(1, HOUR_S, 7671)
    clock.now_ms -= 3_600_000
    assert refusal(opened(tmp_path, clock), secret, joiner(1)) is RefusalCode.EXPIRED


@pytest.mark.parametrize("step_ms", [-86_400_000, 0, 30 * 365 * 86_400_000])
def test_wrong_clock_does_not_prolong_lifetime(tmp_path: Path, clock: Clock, step_ms: int) -> None:
    first = opened(tmp_path, clock)
    clock.now_ms += step_ms
    first.create(1, 60, 7671)
    clock.now_ms -= step_ms
    for invitations in (first, opened(tmp_path, clock)):
        _, secret = invitations.create(1, 60, 7671)
        clock.now_ms -= HOUR_S * 1000
        clock.monotonic_s += 59
        assert invitations.is_listening
        clock.monotonic_s += 1
        assert refusal(invitations, secret, joiner(1)) is RefusalCode.EXPIRED
        assert not invitations.is_listening


def test_revocation_ends_waiting_uses(tmp_path: Path, clock: Clock) -> None:
    invitations = opened(tmp_path, clock)
    made, secret = invitations.create(2, HOUR_S, 7671)
    invitations.redeem(secret, joiner(1))
    assert invitations.is_active
    revoked = invitations.revoke(made.id)
    assert revoked is not None
    assert [use.name for use in revoked.uses] == ["site-1"]
    assert list(opened(tmp_path, clock).waiting()) == []
    assert not invitations.is_active


def test_file_with_hashes_is_private(tmp_path: Path, clock: Clock) -> None:
    invitations = opened(tmp_path, clock)
    _, secret = invitations.create(1, HOUR_S, 7671)
    content = (tmp_path / FILE_NAME).read_bytes()
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
    for form in (secret, secret.hex().encode(), msgspec.json.encode(secret)[1:-3]):
        assert form not in content


def test_admission_settles_use(tmp_path: Path, clock: Clock) -> None:
    invitations = opened(tmp_path, clock)
    _, secret = invitations.create(2, HOUR_S, 7671)
    for number in (1, 2):
        invitations.redeem(secret, joiner(number))
    first, second = invitations.waiting()
    invitations.settle(first)
    assert list(opened(tmp_path, clock).waiting()) == [second]
    assert not invitations.is_late(second)
    clock.now_ms += APPROVAL_LIFETIME_MS + 1
    assert invitations.is_late(second)
    assert invitations.is_active


def test_limits_of_invitations(tmp_path: Path, clock: Clock) -> None:
    invitations = opened(tmp_path, clock)
    for uses, lifetime_s in ((0, 60), (USES_MAX + 1, 60), (1, 0), (1, LIFETIME_LIMIT_S + 1)):
        with pytest.raises(InvitationError):
            invitations.create(uses, lifetime_s, 7671)
    made = [invitations.create(1, HOUR_S, 7671) for _ in range(INVITATIONS_MAX)]
    with pytest.raises(InvitationError, match="revoke some"):
        invitations.create(1, HOUR_S, 7671)
    invitations.revoke(made[5][0].id)
    invitations.create(1, HOUR_S, 7671)
    assert len(invitations.all) == INVITATIONS_MAX
    assert refusal(invitations, made[5][1], joiner(1)) is RefusalCode.UNKNOWN


@each_case(
    "content",
    [b"", b"{", b"[]", b'{"version":2}', b'{"port":65536}', b'{"latestMs":-1}', b'{"invitations":[{}]}', b"\xff"],
)
def test_damaged_file_is_refused_with_remedy(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(UnusableInvitationsError, match="remove it"):
        Invitations(tmp_path)


@pytest.mark.parametrize("now_ms", [-1, 0, 2**53 - 1, 2**53, 2**64])
def test_numbers_of_any_clock_are_read_again(tmp_path: Path, clock: Clock, now_ms: int) -> None:
    clock.now_ms = now_ms
    invitations = opened(tmp_path, clock)
    made, _ = invitations.create(1, LIFETIME_LIMIT_S, 65_535)
    assert opened(tmp_path, clock).all == (made,)
