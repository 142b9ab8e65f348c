"""Reprs hide keys: the default repr of a Struct shows every field, and a repr may reach a log or a traceback."""

from bridge.api.control import FarmKeyAnswer
from bridge.node.settings.bundle import _Bundle
from bridge.wire.i2p.destination_keys import _DestinationFile
from bridge.wire.keys.client_key import _ClientFile
from bridge.wire.keys.farm_key import _FarmFile
from gossip.wire.codec import _DatedKey, _Keyring
from tests.effort import each_case

SECRET = "the-secret-itself"  # noqa: S105 - a mark to search for
KEY = SECRET.encode().ljust(32, b".")


@each_case(
    "holder",
    [
        FarmKeyAnswer(farm_key=SECRET),
        _Bundle("garlicfarm-bundle", 1, SECRET, {"publishing": {"signing_key": SECRET}}),
        _FarmFile(1, "farm", 3, 1, "0011", [SECRET], [SECRET]),
        _ClientFile(1, "pipeline", "public", SECRET),
        _DestinationFile(1, "master", "destination", SECRET),
        _DatedKey(1, KEY, retired=False),
        _Keyring(1, 0, (_DatedKey(1, KEY, retired=False),)),
    ],
    ids=lambda holder: f"{type(holder).__module__}.{type(holder).__name__}",
)
def test_repr_of_key_holder_does_not_show_key(holder: object) -> None:
    assert SECRET not in repr(holder)
    assert type(holder).__name__ in repr(holder)
