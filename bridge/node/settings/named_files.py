"""The problems of the files in the settings: keys, passwords, certificates, lists of users.

    signing_key = "signing.key"   ─▶ its loader ─▶ publishing.signing_key: /etc/…/signing.key does not exist: …

The parts of a node read these files in turn when they are made, and the first problem ends the start. An operator would
see one problem per start, and the first one only after the settings are right. So `garlicfarm run` tries all of them
while it reads the settings (`load_configuration`).

Some faults depend on the use of the file, such as an unknown scope in a list. The part of the node that uses the file
reports these.
"""

import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from bridge.node.security.key_files import (
    KeyFileError,
    load_farm_key,
    load_signing_key,
    read_password,
    read_private_file,
)


def _try_chain(path: Path) -> None:
    read_private_file(path)
    # This password prevents a prompt of OpenSSL if the key is encrypted.
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path, password="")


def _try_authority(path: Path) -> None:
    with path.open("rb"):
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)


LOADERS: Final[Mapping[str, Callable[[Path], object]]] = {
    "farm_key": load_farm_key,
    "signing_key": load_signing_key,
    "password_file": read_password,
    "i2cp_password_file": read_password,
    "i2pcontrol_password_file": read_password,
    "keys": read_private_file,
    "users": read_private_file,
    "users_file": read_private_file,
    "logins_file": read_private_file,
    "certificate": _try_chain,
    "ca_file": _try_authority,
    "client_ca": _try_authority,
    "i2cp_certificate": _try_authority,
    "i2pcontrol_certificate": _try_authority,
}
"""Loaders by the last part of the setting's name. Settings without a loader name directories, which the node makes."""


def file_problem(key: str, path: Path) -> str | None:
    """Return the problem of the file in the setting `key`; None if the node can use it."""
    load = LOADERS.get(key.rpartition(".")[2])
    try:
        if load is not None:
            load(path)
    except KeyFileError as error:
        return str(error)
    except ssl.SSLError as error:
        return f"{path} is not a certificate in PEM, or its key does not match: {error.reason or error}"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror or error}"
    return None
