"""A client's connections: whose turn it is to use one, and how long one attempt may take in all.

Waiting for a connection of our own is no fault of the server's, so that wait is not part of an
attempt. It ends in an error only if the server answers nobody meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpcore
import httpx

# So much is written before the time left is looked at again.
_WRITTEN_AT_ONCE_BYTES = 65536


class _Patience:
    """How long a line may stand still."""

    def __init__(self) -> None:
        self._moved = time.monotonic()

    def note(self, error: BaseException | None) -> None:
        """An attempt ended: whatever it was told, the server is there unless time ran out."""
        if not isinstance(error, httpx.TimeoutException | asyncio.CancelledError):
            self._moved = time.monotonic()

    def left_seconds(self, joined: float, timeout_seconds: float) -> float:
        """The wait that is left to who joined then; raises if there is none."""
        left = max(joined, self._moved) + timeout_seconds - time.monotonic()
        if left <= 0:
            raise httpx.PoolTimeout(f"no call of this client was answered for {timeout_seconds} s")
        return left


class Connections:
    """Those that threads share."""

    def __init__(self, count: int) -> None:
        self._free = threading.Semaphore(count)
        self._patience = _Patience()

    @contextmanager
    def one(self, timeout_seconds: float) -> Iterator[None]:
        """Waits for one, then gives the whole of what is done with it so much time."""
        joined = time.monotonic()
        while not self._free.acquire(timeout=self._patience.left_seconds(joined, timeout_seconds)):
            pass
        error: BaseException | None = None
        _deadline.at = time.monotonic() + timeout_seconds
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            _deadline.at = None
            self._patience.note(error)
            self._free.release()


class AsyncConnections:
    """Those that the tasks of one loop share; first come, first served."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._line: deque[asyncio.Future[None]] = deque()
        self._patience = _Patience()

    @asynccontextmanager
    async def one(self, timeout_seconds: float) -> AsyncIterator[None]:
        """Waits for one."""
        await self._take(timeout_seconds)
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._patience.note(error)
            self._give_back()

    async def _take(self, timeout_seconds: float) -> None:
        if self._free > 0:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        joined = time.monotonic()
        try:
            while not turn.done():
                left = self._patience.left_seconds(joined, timeout_seconds)
                # Unlike `wait_for` this leaves the turn in its place in the line.
                await asyncio.wait((turn,), timeout=left)
        except BaseException:
            # It may have come up at the moment of leaving.
            if not turn.cancel():
                self._give_back()
            raise

    def _give_back(self) -> None:
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class _Deadline(threading.local):
    """When the attempt that this thread is making has to end."""

    at: float | None = None

    def bounded(self, timeout: float | None, error: type[Exception]) -> float | None:
        if self.at is None:
            return timeout
        left = self.at - time.monotonic()
        if left <= 0:
            raise error("timed out")
        return left if timeout is None else min(left, timeout)


_deadline = _Deadline()


def bound_attempts(http: httpx.Client) -> None:
    """Makes all that httpx does for an attempt end at its deadline.

    By itself it bounds each read, so a server that trickles would hold a caller for as long as it
    likes. httpx hands no network backend on to httpcore, hence the private names; where they are
    not there (a transport of another kind) httpx's own bounds are what holds.
    """
    for transport in (http._transport, *http._mounts.values()):
        pool: Any = getattr(transport, "_pool", None)
        backend = getattr(pool, "_network_backend", None)
        if isinstance(backend, httpcore.NetworkBackend):
            pool._network_backend = _BoundedBackend(backend)


class _BoundedBackend(httpcore.NetworkBackend):
    def __init__(self, inner: httpcore.NetworkBackend) -> None:
        self._inner = inner

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        timeout = _deadline.bounded(timeout, httpcore.ConnectTimeout)
        stream = self._inner.connect_tcp(host, port, timeout, local_address, socket_options)
        return _BoundedStream(stream)

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.NetworkStream:
        timeout = _deadline.bounded(timeout, httpcore.ConnectTimeout)
        return _BoundedStream(self._inner.connect_unix_socket(path, timeout, socket_options))

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)


class _BoundedStream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, _deadline.bounded(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _WRITTEN_AT_ONCE_BYTES):
            left = _deadline.bounded(timeout, httpcore.WriteTimeout)
            self._inner.write(buffer[start : start + _WRITTEN_AT_ONCE_BYTES], left)

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self,
        ssl_context: Any,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        left = _deadline.bounded(timeout, httpcore.ConnectTimeout)
        return _BoundedStream(self._inner.start_tls(ssl_context, server_hostname, left))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
