"""The hash of a destination, as operators and the pipeline name it: the part before `.b32.i2p` in its address.

Reports carry destinations in full, in I2P's base64 (`-` and `~` instead of `+` and `/`). Exclusions, factors and the
assignment of leaves to masters carry hashes, because an operator cannot type 500 characters. The state machine computes
the hash from the destination, for each leaf at each entry; therefore results are cached.
"""

import base64
import hashlib
from functools import lru_cache

HASH_CHARACTERS = 52
_KEPT = 8192


@lru_cache(maxsize=_KEPT)
def hash_of(destination: str) -> str:
    """Return the base32 of the SHA-256 of a destination, 52 characters.

    The decoder admits only destinations. Any other text is hashed unchanged: an exception here would stop every server
    of the farm at the same entry.
    """
    try:
        content = base64.b64decode(destination, altchars=b"-~", validate=True)
    except ValueError:
        content = destination.encode("utf-8", "surrogatepass")
    return base64.b32encode(hashlib.sha256(content).digest()).decode("ascii").rstrip("=").lower()
