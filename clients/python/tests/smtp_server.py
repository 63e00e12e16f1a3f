"""A small SMTP server that takes every message: what the relay's accounts talk to in tests."""

from __future__ import annotations

import socketserver
import threading


class Mailbox:
    """Listens on a free port; `messages` are the DATA of all that was taken."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        box = self

        class Session(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.say("220 mailbox.test ready")
                while line := self.rfile.readline():
                    verb = line.split()[0].upper() if line.split() else b""
                    if verb == b"DATA":
                        self.say("354 go on")
                        box.messages.append(self.data())
                        self.say("250 taken")
                    elif verb == b"QUIT":
                        self.say("221 bye")
                        return
                    else:
                        self.say("250 mailbox.test")

            def say(self, line: str) -> None:
                self.wfile.write(f"{line}\r\n".encode())

            def data(self) -> str:
                lines = []
                while (line := self.rfile.readline()) not in (b".\r\n", b""):
                    lines.append(line.removeprefix(b"."))
                return b"".join(lines).decode()

        class Listener(socketserver.ThreadingTCPServer):
            daemon_threads = True

        self._listener = Listener(("127.0.0.1", 0), Session)
        self.port = self._listener.server_address[1]
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown()
        self._thread.join()
        self._listener.server_close()
