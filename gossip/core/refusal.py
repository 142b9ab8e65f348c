"""Why a join was refused or redirected: the codes that JoinNak and JoinRedirect carry.

The RFC gives an error a `domain`, which names the space of its `code`, and an `etag`. All of ours live in one domain.
The number of TOKEN_EXPECTED is the one of the RFC's example session; the others follow it.
"""

from enum import IntEnum
from typing import Final

DOMAIN: Final = "swimjoin"
"""The space of the codes below (8 characters, as the RFC lays it out)."""


class RefusalCode(IntEnum):
    """What the sender of a JoinReq should do next."""

    TOKEN_EXPECTED = 7115
    """The etag is a token: send the JoinReq again with it."""
    AT_CAPACITY = 7116
    """No room here; a JoinRedirect names members with room, a JoinNak knows of none."""
    NOT_A_PEER = 7117
    """Answers a direct ping from somebody who takes us for a peer, while we do not: links are symmetrical or gone."""
    EDGE_SPLIT = 7118
    """Told to a peer whose link is given to a newcomer: go to the newcomer at the address of the JoinRedirect."""
    KEY_RETIRED = 7119
    """The JoinReq was sealed with a retired key: get the current farm key."""
    POLICY_FAILED = 7120
    """The receiver's application has a say about joiners, and its check failed: that is to be mended over there."""
