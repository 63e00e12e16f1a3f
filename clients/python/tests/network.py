"""Networks and servers that are not as they should be, on real sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer

ALLOWED = (
    '{"allowed":true,"policy":"p","cost":1,"limits":[],"decided_at":"2026-11-15T12:00:00.000001Z"}'
)


class LossyRelay:
    """Hands requests on; instead of the first `lost` answers the client sees only an end."""

    def __init__(self, address: str, *, lost: int) -> None:
        host, port = address.removeprefix("http://").split(":")
        self._server = (host, int(port))
        self._left = lost
        self.requests: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        # Wakes the accepting thread, which closing alone does not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client:
                self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        request = _message(client.recv)
        self.requests.append(request)
        with socket.create_connection(self._server) as server:
            server.sendall(request)
            answer = _message(server.recv)
        if self._left > 0:
            self._left -= 1
            return
        # One exchange per connection keeps this simple.
        client.sendall(answer.replace(b"\r\n", b"\r\nconnection: close\r\n", 1))


def _message(receive: Callable[[int], bytes]) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += receive(65536)
    head, body = data.split(b"\r\n\r\n", 1)
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    length = int(lengths[0].split(b":")[1]) if lengths else 0
    while len(body) < length:
        body += receive(65536)
    return head + b"\r\n\r\n" + body


class Trickler:
    """Answers a byte at a time, for ever, from the head or the body on; or not at all."""

    def __init__(self, first: bytes | None) -> None:
        self._first = first
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        self._ended.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(client,), daemon=True))
            self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            if self._first is not None:
                client.sendall(self._first)
            while not self._ended.wait(0.05):
                if self._first is not None:
                    client.sendall(b" " if b"\r\n\r\n" in self._first else b"x")


class Scripted(HTTPServer):
    """Answers as told, one after the other; the last for ever."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str], str]] = []
        self.asked = 0
        self.pause_seconds = 0.0
        super().__init__(("127.0.0.1", 0), ScriptedHandler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class ScriptedHandler(BaseHTTPRequestHandler):
    server: Scripted

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        answers = self.server.answers
        status, headers, body = answers[min(self.server.asked, len(answers) - 1)]
        self.server.asked += 1
        time.sleep(self.server.pause_seconds)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    do_DELETE = do_POST

    def log_message(self, *_arguments: object) -> None:
        pass
