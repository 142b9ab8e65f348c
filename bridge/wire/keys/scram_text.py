"""The stored form of a Kafka user's password, as a word of a line in `kafka.users`.

    SCRAM-SHA-512$4096:SALT$STORED_KEY:SERVER_KEY        the last three in base64

PostgreSQL keeps the credentials of SCRAM in the same form (RFC 5803 has the fields). A thief cannot log in with
this form, but can try guesses of the password. So new passwords are random and long.

`garlicfarm keys kafka-user` writes such a line, and the Kafka listener reads it.
"""

import re
import secrets
from base64 import b64decode, b64encode
from typing import Final

from consensus.protocols.kafka import Mechanism, ScramCredential, scram_credential

SALT_BYTES: Final = 16
PASSWORD_BYTES: Final = 24
MIN_ITERATIONS: Final = 4_096
MAX_ITERATIONS: Final = 1_000_000
_BASE64: Final = "([A-Za-z0-9+/]+={0,2})"
_FORM: Final = re.compile(rf"(SCRAM-SHA-(?:256|512))\$([1-9][0-9]{{3,6}}):{_BASE64}\${_BASE64}:{_BASE64}")


def new_password() -> str:
    """Return a password that cannot be guessed: 32 characters of letters, digits, `-` and `_`."""
    return secrets.token_urlsafe(PASSWORD_BYTES)


def new_credential(mechanism: Mechanism, password: str) -> str:
    """Return the word for a password, with a new salt."""
    made = scram_credential(mechanism, password, secrets.token_bytes(SALT_BYTES), MIN_ITERATIONS)
    salt, stored, server = (b64encode(part).decode() for part in (made.salt, made.stored_key, made.server_key))
    return f"{mechanism.value}${made.iterations}:{salt}${stored}:{server}"


def credential_in(word: str) -> tuple[Mechanism, ScramCredential] | None:
    """Return the reverse of `new_credential`; None for any other word."""
    found = _FORM.fullmatch(word)
    if found is None:
        return None
    mechanism, iterations = Mechanism(found[1]), int(found[2])
    try:
        salt, stored, server = (b64decode(part, validate=True) for part in found.groups()[2:])
    except ValueError:
        return None
    size = 32 if mechanism is Mechanism.SCRAM_SHA_256 else 64
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS or {len(stored), len(server)} != {size} or not salt:
        return None
    return mechanism, ScramCredential(salt, iterations, stored, server)
