"""Common parts of the commands of `garlicfarm zmq-raft`: ident and peers, and the end of a command without pyzmq."""

from functools import partial

import click

from bridge.cli.failure import fail, fail_to_read, needs_extra
from consensus.protocols import zmq_raft as protocol

IDENT_VARIABLE = "GARLICFARM_ZMQ_IDENT"
needs_pyzmq = partial(
    needs_extra, ("zmq",), "ØMQ Raft needs the package pyzmq; install it with: pip install 'garlicfarm[zmq]'"
)

_IDENT_BYTES_MAX = 4_096


def _ident(_context: click.Context, _option: click.Parameter, given: str) -> str:
    """Return the ident, or the first line of the file or of standard input that it names."""
    if not given.startswith("@"):
        return given
    try:
        with click.open_file(given[1:], encoding="utf-8") as file:
            line: str = file.readline(_IDENT_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        fail_to_read(given[1:], error)
    return line.rstrip("\r\n")


ident_option = click.option(
    "--ident",
    default="",
    envvar=IDENT_VARIABLE,
    callback=_ident,
    metavar="IDENT|@FILE",
    help=f"The cluster's ident, which the package calls its secret (default: ${IDENT_VARIABLE}, then none). Other users"
    " of this machine can read a command line: @FILE reads the ident from a file, @- from standard input.",
)


def parse_peer(text: str) -> protocol.Peer:
    """Return a peer from `ID=URL`, or end the command."""
    peer_id, equals, url = text.partition("=")
    if not equals or not peer_id or not url.startswith("tcp://"):
        fail(f"{text!r} does not name a peer: write ID=tcp://IP:PORT")
    return protocol.Peer(peer_id, url)
