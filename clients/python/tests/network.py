"""A real TCP relay in front of a server, that loses answers when told to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable


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
