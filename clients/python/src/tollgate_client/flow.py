"""One description of every call, for both clients.

A call is a *flow*: a generator that yields what has to be done (send this request, pause so long),
is given the outcome, and returns the result. It does no I/O, so retries, waiting and paging are
written once. A transport carries a flow out, by blocking or by awaiting.

`@operation` and `@listing` turn a method that returns a flow into what a caller sees: on a client
with a `SyncTransport` a plain method, on one with an `AsyncTransport` a coroutine; both typed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, cast, overload

import httpx

from .connections import AsyncConnections, Connections, bound_attempts

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Send:
    """Send this request; the answer, or httpx's error, comes back.

    The time is that of the whole attempt; a wait for a connection of our own is not part of it.
    """

    method: str
    path: str
    params: Mapping[str, str]
    body: Any
    headers: Mapping[str, str]
    timeout_seconds: float


@dataclass(frozen=True)
class Pause:
    """Go on after so many seconds."""

    seconds: float


Flow: TypeAlias = Generator[Send | Pause, httpx.Response | None, T]


@dataclass(frozen=True)
class Page(Generic[T]):
    """Some items, and the flow that gets the next page if there is one."""

    items: tuple[T, ...]
    following: Callable[[], Flow[Page[T]]] | None


class SyncTransport:
    """Carries flows out by blocking the thread. Any number of threads may share one."""

    def __init__(self, http: httpx.Client, max_connections: int) -> None:
        self.http = http
        self._connections = Connections(max_connections)
        bound_attempts(http)

    def run(self, flow: Flow[T]) -> T:
        try:
            step = next(flow)
            while True:
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
                    step = flow.send(None)
                    continue
                try:
                    response = self._send(step)
                except httpx.TransportError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(response)
        except StopIteration as end:
            return cast(T, end.value)

    def _send(self, step: Send) -> httpx.Response:
        with self._connections.one(step.timeout_seconds):
            return self.http.send(_request(self.http, step))

    def items(self, flow: Flow[Page[T]]) -> Iterator[T]:
        while True:
            page = self.run(flow)
            yield from page.items
            if page.following is None:
                return
            flow = page.following()


class AsyncTransport:
    """Carries flows out on the running asyncio loop."""

    def __init__(self, http: httpx.AsyncClient, max_connections: int) -> None:
        self.http = http
        self._connections = AsyncConnections(max_connections)

    async def run(self, flow: Flow[T]) -> T:
        try:
            step = next(flow)
            while True:
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                    step = flow.send(None)
                    continue
                try:
                    response = await self._send(step)
                except httpx.TransportError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(response)
        except StopIteration as end:
            return cast(T, end.value)

    async def _send(self, step: Send) -> httpx.Response:
        async with self._connections.one(step.timeout_seconds):
            request = _request(self.http, step)
            try:
                return await asyncio.wait_for(self.http.send(request), step.timeout_seconds)
            except asyncio.TimeoutError:
                # Whether it arrived cannot be told: never a ConnectTimeout.
                raise httpx.ReadTimeout("timed out", request=request) from None

    async def items(self, flow: Flow[Page[T]]) -> AsyncIterator[T]:
        while True:
            page = await self.run(flow)
            for item in page.items:
                yield item
            if page.following is None:
                return
            flow = page.following()


def _request(http: httpx.Client | httpx.AsyncClient, step: Send) -> httpx.Request:
    return http.build_request(
        step.method,
        step.path,
        params=step.params or None,
        json=step.body,
        headers=step.headers,
        # A connection that is not made is known to be none before the whole attempt has timed out.
        timeout=httpx.Timeout(step.timeout_seconds, connect=step.timeout_seconds * 0.9),
    )


Transport = TypeVar("Transport", bound=SyncTransport | AsyncTransport)


class Bound(Generic[Transport]):
    """Something whose operations one transport carries out."""

    _transport: Transport


class Operation(Generic[P, T]):
    """A method that is described by a flow."""

    def __init__(self, describe: Callable[Concatenate[Any, P], Flow[T]]) -> None:
        self._describe = describe
        self.__doc__ = describe.__doc__

    @overload
    def __get__(self, face: None, owner: type) -> Operation[P, T]: ...
    @overload
    def __get__(self, face: Bound[SyncTransport], owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(
        self, face: Bound[AsyncTransport], owner: type
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, face: Bound[Any] | None, owner: type) -> Any:
        if face is None:
            return self
        describe = self._describe.__get__(face, owner)

        @wraps(describe)
        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return face._transport.run(describe(*args, **kwargs))

        return call


class Listing(Generic[P, T]):
    """A method that gives items page by page, each page fetched when it is reached."""

    def __init__(self, describe: Callable[Concatenate[Any, P], Flow[Page[T]]]) -> None:
        self._describe = describe
        self.__doc__ = describe.__doc__

    @overload
    def __get__(self, face: None, owner: type) -> Listing[P, T]: ...
    @overload
    def __get__(self, face: Bound[SyncTransport], owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(
        self, face: Bound[AsyncTransport], owner: type
    ) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, face: Bound[Any] | None, owner: type) -> Any:
        if face is None:
            return self
        describe = self._describe.__get__(face, owner)

        @wraps(describe)
        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return face._transport.items(describe(*args, **kwargs))

        return call


def operation(describe: Callable[Concatenate[Any, P], Flow[T]]) -> Operation[P, T]:
    """One answer."""
    return Operation(describe)


def listing(describe: Callable[Concatenate[Any, P], Flow[Page[T]]]) -> Listing[P, T]:
    """An iterator over all pages."""
    return Listing(describe)
