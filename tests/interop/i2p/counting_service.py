"""A service on loopback that counts the requests of each path, and replies with its name."""

import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.interop.i2p.router import LOOPBACK
from tests.processes import END_S


class CountingService:
    """The service of one leaf. After `stop`, `start` opens the same port again; the counts stay."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = 0
        self.requests: Counter[str] = Counter()
        """The number of requests by path."""
        self._server: ThreadingHTTPServer | None = None
        self._thread = threading.Thread()

    def start(self) -> None:
        """Listen until `stop`."""
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.requests[self.path] += 1
                body = service.name.encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                """Drop the message."""

        self._server = ThreadingHTTPServer((LOOPBACK, self.port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def stop(self) -> None:
        """Close the port, if it is open."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(END_S)
            self._server = None
