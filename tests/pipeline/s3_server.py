"""An S3 server on loopback for tests: objects in memory, conditional writes, and planted faults.

A test counts its requests, plants a fault, or reads its objects directly. It accepts any signature of the key `KEY`. It
serves the requests of delta-rs and obstore: objects, copies, deletions, lists.
"""

import hashlib
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

from tests.processes import END_S

KEY, SECRET, BUCKET = "garlic", "clove-of-the-test", "farm"
PAGE = 1000
NEVER = 1_000_000_000
_DELETED = re.compile(r"<Key>([^<]*)</Key>")


class S3Server:
    """The objects of one bucket. `ignores_conditions`: overwrite objects despite If-None-Match and If-Match."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: Counter[str] = Counter()
        self.ignores_conditions = False
        self.denied_methods: frozenset[str] = frozenset()
        self.denied_keys = ""
        """Requests for keys that contain this text are refused; empty: none."""
        self.drops_reply_to = ""
        """The end of a key: the next write of such an object is done, and its reply is lost."""
        self.after_list: dict[str, bytes] | None = None
        """The objects after the next list, as if another program had written in the meantime."""
        self.writes_left = NEVER
        """The number of writes until the client counts as killed: all its later requests are refused."""
        self.at_write: Callable[[], None] | None = None
        """A callback after each stored object, before its reply."""
        self.lock = threading.Lock()
        self.url = ""

    def environment(self) -> dict[str, str]:
        """Return the variables of a client."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }


@contextmanager
def serving_s3() -> Iterator[S3Server]:
    """Serve a bucket until the end of the block."""
    server = S3Server()

    class Handler(_Handler):
        s3 = server

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        server.url = f"http://127.0.0.1:{http.server_address[1]}"
        thread = threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join(END_S)


def etag_of(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


class _Handler(BaseHTTPRequestHandler):
    s3: S3Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of http.server
        """Print nothing."""

    def handle_one_request(self) -> None:
        """Serve a request. Ignore a connection that its client has reset, for example because it was killed."""
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def _serve(self) -> None:
        url = urlsplit(self.path)
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        with self.s3.lock:
            self.s3.requests[self.command] += 1
            if self.command == "PUT":
                self.s3.writes_left -= 1
            if self.s3.writes_left < 0:
                self._refuse(403, "AccessDenied")
            elif f"Credential={KEY}/" not in self.headers.get("Authorization", ""):
                self._refuse(403, "InvalidAccessKeyId")
            elif self.command in self.s3.denied_methods or (self.s3.denied_keys and self.s3.denied_keys in key):
                self._refuse(403, "AccessDenied")
            elif bucket != BUCKET:
                self._refuse(404, "NoSuchBucket")
            else:
                getattr(self, f"_{self.command.lower()}")(key, query, body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815 - names of http.server

    def _put(self, key: str, _query: dict[str, str], body: bytes) -> None:
        held = self.s3.objects.get(key)
        wanted = self.headers.get("If-Match")
        is_wrong = held is None if wanted else held is not None and self.headers.get("If-None-Match") == "*"
        is_wrong = is_wrong or bool(wanted and held is not None and wanted != etag_of(held))
        if is_wrong and not self.s3.ignores_conditions:
            self._refuse(412, "PreconditionFailed")
            return
        if source := self.headers.get("x-amz-copy-source"):
            body = self.s3.objects[unquote(source).lstrip("/").partition("/")[2]]
        self.s3.objects[key] = body
        if self.s3.at_write is not None:
            self.s3.at_write()
        if self.s3.drops_reply_to and key.endswith(self.s3.drops_reply_to):
            self.s3.drops_reply_to = ""
            self.close_connection = True
            return
        tag = etag_of(body)
        self._reply(200, f"<CopyObjectResult><ETag>{escape(tag)}</ETag></CopyObjectResult>".encode(), {"ETag": tag})

    def _get(self, key: str, query: dict[str, str], _body: bytes) -> None:
        if not key:
            self._list(query)
            return
        content = self.s3.objects.get(key)
        if content is None:
            self._refuse(404, "NoSuchKey")
            return
        more = {"ETag": etag_of(content), "Last-Modified": f"{datetime.now(UTC):%a, %d %b %Y %T} GMT"}
        if found := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "")):
            first = int(found[1]) if found[1] else max(0, len(content) - int(found[2]))
            last = min(int(found[2]), len(content) - 1) if found[1] and found[2] else len(content) - 1
            more["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            self._reply(206, content[first : last + 1], more)
        else:
            self._reply(200, content, more)

    _head = _get

    def _list(self, query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        found, folders = list[str](), set[str]()
        for key in sorted(self.s3.objects):
            if key.startswith(prefix) and key > after and len(found) < int(query.get("max-keys", PAGE)):
                head, is_folder, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
                if is_folder:
                    folders.add(prefix + head + delimiter)
                else:
                    found.append(key)
        is_cut = len(found) == int(query.get("max-keys", PAGE))
        text = f"<ListBucketResult><KeyCount>{len(found)}</KeyCount><IsTruncated>{str(is_cut).lower()}</IsTruncated>"
        text += f"<NextContinuationToken>{escape(found[-1])}</NextContinuationToken>" if is_cut else ""
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.000Z}"
        for key in found:
            content = self.s3.objects[key]
            text += (
                f"<Contents><Key>{escape(key)}</Key><Size>{len(content)}</Size><LastModified>{now}</LastModified>"
                f"<ETag>{escape(etag_of(content))}</ETag></Contents>"
            )
        text += "".join(f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in sorted(folders))
        if self.s3.after_list is not None:
            self.s3.objects, self.s3.after_list = self.s3.after_list, None
        self._reply(200, f"{text}</ListBucketResult>".encode())

    def _delete(self, key: str, _query: dict[str, str], _body: bytes) -> None:
        self.s3.objects.pop(key, None)
        self._reply(204, b"")

    def _post(self, _key: str, _query: dict[str, str], body: bytes) -> None:
        deleted = _DELETED.findall(body.decode())
        for key in deleted:
            self.s3.objects.pop(unescape(key), None)
        text = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in deleted)
        self._reply(200, f"<DeleteResult>{text}</DeleteResult>".encode())

    def _refuse(self, status: int, code: str) -> None:
        self._reply(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())

    def _reply(self, status: int, content: bytes, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (more or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            # delta-rs leaves a reply that it does not need.
            with suppress(ConnectionError):
                self.wfile.write(content)
