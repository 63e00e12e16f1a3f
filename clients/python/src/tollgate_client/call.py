"""One request to the server: its headers, its retries, and what its answer means.

Retried are network errors and a store or proxy that is down for the moment; never a refusal.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx

from .errors import BadAnswer, Unreachable, error_of
from .flow import Bound, Flow, Pause, Send, Transport
from .retry import Retry, told_seconds

T = TypeVar("T")

_TEMPORARY = (502, 503, 504)
_PASSES = ("urn:tollgate:store-unavailable", "urn:tollgate:busy")


@dataclass(frozen=True)
class Settings:
    """What all calls of a client have in common. Secrets stay out of its repr."""

    token: str | None = field(repr=False)
    api_key: str | None = field(repr=False)
    timeout_seconds: float
    retry: Retry | None


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request, and how its answer is read."""

    method: str
    path: str
    read: Callable[[Any], T]
    params: Mapping[str, object] = field(default_factory=dict)
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    # A call that makes something new each time is repeated only if it surely did not arrive.
    makes_anew: bool = False
    # A call that takes something away finds nothing the second time, which is as it should be.
    takes_away: bool = False


class Section(Bound[Transport]):
    """A group of calls."""

    def __init__(self, transport: Transport, settings: Settings) -> None:
        self._transport = transport
        self._settings = settings

    def _call(self, call: Call[T]) -> Flow[T]:
        response = yield from self._answer(call)
        return call.read(document_of(response, require_success=True))

    def _answer(self, call: Call[Any]) -> Flow[httpx.Response]:
        """Any answer at all, after the retries there was time for."""
        settings, retry = self._settings, self._settings.retry
        headers = {"X-API-Token": settings.token} if settings.token else {}
        headers.update(call.headers)
        params = {name: _text(value) for name, value in call.params.items() if value is not None}
        started, failures, may_have_arrived = time.monotonic(), 0, False
        while True:
            timeout = settings.timeout_seconds
            if retry is not None:
                left = started + retry.total_seconds - time.monotonic()
                timeout = max(min(timeout, left), 0.001)
            outcome = yield from _attempt(
                Send(call.method, call.path, params, call.body, headers, timeout)
            )
            if isinstance(outcome, httpx.Response) and not _is_temporary(outcome):
                if call.takes_away and may_have_arrived and _is_not_found(outcome):
                    return httpx.Response(200, json={}, request=outcome.request)
                return outcome
            failures += 1
            may_have_arrived = may_have_arrived or not _did_not_arrive(outcome)
            if retry is not None and _may_repeat(call, outcome):
                told = None
                if isinstance(outcome, httpx.Response):
                    told = told_seconds(outcome.headers)
                delay = retry.delay_seconds(failures, told)
                if time.monotonic() + delay < started + retry.total_seconds:
                    yield Pause(delay)
                    continue
            if isinstance(outcome, httpx.Response):
                return outcome
            raise Unreachable(f"the server did not answer: {_reason(outcome)}") from outcome

    def _idempotency(self, key: str | None) -> dict[str, str]:
        """One key over the retries of one call, so that what arrived twice counts once."""
        if key is None and self._settings.retry is not None:
            key = uuid.uuid4().hex
        if key is None:
            return {}
        if not key or not all(" " <= character <= "~" for character in key):
            raise ValueError("an idempotency_key must be of ASCII characters that can be seen")
        escaped = key.replace("\\", "\\\\").replace('"', '\\"')
        return {"Idempotency-Key": f'"{escaped}"'}


def _attempt(
    step: Send,
) -> Generator[Send | Pause, httpx.Response | None, httpx.Response | httpx.TransportError]:
    try:
        response = yield step
    except httpx.TransportError as error:
        return error
    assert response is not None, "a transport answers every Send"
    return response


def _is_temporary(response: httpx.Response) -> bool:
    if response.status_code not in _TEMPORARY:
        return False
    # Of Tollgate's own problems only these pass by themselves: a schedule that is full up to its
    # horizon does not. Anything else was said by a proxy.
    kind = str(document_of(response).get("type", ""))
    return kind in _PASSES or not kind.startswith("urn:tollgate:")


def _may_repeat(call: Call[Any], outcome: httpx.Response | httpx.TransportError) -> bool:
    # What cannot be sent at all will not be the next time.
    if isinstance(outcome, httpx.UnsupportedProtocol | httpx.LocalProtocolError):
        return False
    return not call.makes_anew or _did_not_arrive(outcome)


def _did_not_arrive(outcome: httpx.Response | httpx.TransportError) -> bool:
    """Surely: what was answered by a proxy, or not at all, may have been done all the same."""
    return isinstance(outcome, httpx.ConnectError | httpx.ConnectTimeout)


def _is_not_found(response: httpx.Response) -> bool:
    # Tollgate's own: a proxy that lost its way says 404 too.
    kind = document_of(response).get("type")
    return response.status_code == 404 and kind == "urn:tollgate:not-found"


def _reason(error: httpx.TransportError) -> str:
    if isinstance(error, httpx.PoolTimeout) and not str(error):
        return "all connections of the transport were in use"
    return str(error) or type(error).__name__


def document_of(response: httpx.Response, *, require_success: bool = False) -> dict[str, Any]:
    """The answer's JSON object; an error's is raised if success is required."""
    try:
        document = response.json()
    except ValueError:
        document = None
    if response.is_success and require_success and not isinstance(document, dict):
        raise BadAnswer(
            f"{response.request.url} answered {response.status_code} without a JSON object; "
            "is this a Tollgate server?"
        )
    if not isinstance(document, dict):
        document = {"detail": response.text[:200]}
    if require_success and not response.is_success:
        raise error_of(response.status_code, document, told_seconds(response.headers))
    return document


def segment(text: str) -> str:
    """A path's segment. A dot would be taken for "here" and left out, so it is written out."""
    if not text:
        raise ValueError("an id or name must not be empty")
    return quote(text, safe="").replace(".", "%2E") if text in (".", "..") else quote(text, safe="")


def instant(value: datetime | str | None) -> str | None:
    """RFC 3339, as the server reads it."""
    if not isinstance(value, datetime):
        return value
    if value.tzinfo is None:
        raise ValueError(
            "a time without a zone is ambiguous; give it one: datetime.now(timezone.utc)"
        )
    return value.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def given(**members: Any) -> dict[str, Any]:
    """Those that are not None."""
    return {name: value for name, value in members.items() if value is not None}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
