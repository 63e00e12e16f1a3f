"""A real server, on a free port and in a folder of its own, for as long as a test needs it."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

PATIENCE_SECONDS = 60.0


def binary() -> Path:
    """`TOLLGATE_BIN`, or what cargo built."""
    named = os.environ.get("TOLLGATE_BIN")
    target = Path(__file__).resolve().parents[3] / "target"
    choices = (
        [Path(named)] if named else [target / kind / "tollgate" for kind in ("debug", "release")]
    )
    for path in choices:
        if path.is_file():
            return path.resolve()
    names = " or ".join(str(path) for path in choices)
    raise FileNotFoundError(f"no server at {names}: run `cargo build`, or set TOLLGATE_BIN")


class Server:
    """A running server; `stop` and `start` leave its store and its port as they are."""

    def __init__(self, home: Path, *, store: str = "memory:", before: Sequence[str] = ()) -> None:
        """`before` is a command that runs the one after it."""
        self._home, self._store, self._before = home, store, before
        self._listen = "127.0.0.1:0"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        command = [str(binary()), "serve", "--listen", self._listen, "--store", self._store]
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE_")
        }
        said = self._home / "said.txt"
        with said.open("w") as output:
            self._process = subprocess.Popen(
                [*self._before, *command],
                cwd=self._home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        for _ in eventually("the server says where it listens"):
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended: {said.read_text()}")
            # The comma says that the address before it is complete.
            found = re.search(r"tollgate listens on http://([^,\s]+),", said.read_text())
            if found:
                self._listen = found[1]
                self.url = f"http://{self._listen}"
                return

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE_SECONDS)
            self._process = None


def eventually(what: str) -> Eventually:
    """Iterates, with short pauses, until broken out of; fails when patience ends."""
    return Eventually(what)


class Eventually:
    def __init__(self, what: str) -> None:
        self._what = what
        self._ends = time.monotonic() + PATIENCE_SECONDS
        self._turn = 0

    def __iter__(self) -> Eventually:
        return self

    def __next__(self) -> int:
        if time.monotonic() > self._ends:
            raise AssertionError(f"not in {PATIENCE_SECONDS} s: {self._what}")
        # The first turns come at once: most waits are short.
        self._turn += 1
        time.sleep(min(self._turn * 0.0005, 0.02))
        return self._turn
