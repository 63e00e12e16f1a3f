"""Middleware for any ASGI application: Starlette, FastAPI, Litestar, Quart.

One check per HTTP request, its headers on every answer. WebSockets pass unchecked. Who is asking is
for the application to say: a client's address is the one the ASGI server tells, so trusted proxies
are set there; an identity is to be verified before it is a subject.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

from .call import given
from .client import AsyncTollgate
from .decisions import Decision, noting_a_failed_refund
from .errors import BadInput, NotIdentified, TollgateError, Unavailable, Unreachable

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Form: TypeAlias = Literal["problem", "simple"]

_log = logging.getLogger("tollgate_client")

_QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
# These are lists: an application limited twice tells of both.
_LISTS = (b"ratelimit", b"ratelimit-policy")


@dataclass(frozen=True)
class HttpRequest:
    """What a subject function sees. `starlette.requests.Request(request.scope)` shows more."""

    scope: Scope

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    @property
    def path(self) -> str:
        return str(self.scope["path"])

    @property
    def client_ip(self) -> str | None:
        """The peer's address, as the ASGI server tells it."""
        client = self.scope.get("client")
        return str(client[0]) if client else None

    @cached_property
    def headers(self) -> Mapping[str, str]:
        """By lower-case name; of a repeated one the last."""
        pairs = self.scope["headers"]
        return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in pairs}


@dataclass(frozen=True)
class Answer:
    """An HTTP answer, whatever framework is to give it."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def refusal(decision: Decision, form: Form = "problem") -> Answer:
    """What a client is told of a refused decision: 429, or 422 if no wait helps.

    The form is a problem document (RFC 9457) with the decision in it, as the server writes it, or
    `{"ok": false, "error", "retry_after"}`.
    """
    if decision.never_fits:
        status, kind, title = 422, "urn:tollgate:cost-never-fits", "Cost can never fit"
    else:
        status, kind = 429, _QUOTA_EXCEEDED
        title = "Request cannot be satisfied as assigned quota has been exceeded"
    if form == "simple":
        document = given(ok=False, error=decision.sentence, retry_after=decision.retry_after)
    else:
        document = {
            "type": kind,
            "title": title,
            "status": status,
            "detail": decision.sentence,
            "violated-policies": list(decision.violated),
            **({"field": "cost"} if decision.never_fits else {}),
            **_members(decision),
        }
    return _answer(status, document, form, decision.headers)


def _members(decision: Decision) -> dict[str, Any]:
    """The decision as the server spells it."""
    limits = [
        given(
            name=limit.name,
            max=limit.max,
            used=limit.used,
            remaining=limit.remaining,
            resets_at=_written(limit.resets_at),
            retry_after=limit.retry_after,
            shadow=limit.shadow or None,
        )
        for limit in decision.limits
    ]
    return given(
        allowed=decision.allowed,
        policy=decision.policy,
        cost=decision.cost,
        limits=limits,
        retry_after=decision.retry_after,
        retry_at=decision.retry_at and _written(decision.retry_at),
        decided_at=_written(decision.decided_at),
        degraded=decision.degraded,
    )


def _written(at: datetime) -> str:
    """RFC 3339 in UTC, with all microseconds."""
    text = at.astimezone(timezone.utc).isoformat(timespec="microseconds")
    return text.replace("+00:00", "Z")


def _answer(
    status: int, document: Mapping[str, Any], form: Form, headers: Mapping[str, str]
) -> Answer:
    kind = "application/json" if form == "simple" else "application/problem+json"
    body = json.dumps(document).encode()
    length = str(len(body))
    return Answer(status, {"content-type": kind, "content-length": length, **headers}, body)


@dataclass(frozen=True)
class _Check:
    """What became of asking: go on (with a decision, or without), or give this answer."""

    decision: Decision | None = None
    answer: Answer | None = None


class TollgateMiddleware:
    """Checks every HTTP request before the application sees it.

    * `policy`: its name, or a function of the request; None lets the request pass.
    * `subject`: a function of the request, plain or async, that says who is asking; None lets it
      pass, `NotIdentified` is answered with 401.
    * `cost`: units, or a function of the request.
    * `refusal`: the form of a refusal, see `refusal()`.
    * `refund_from_status`: an application that answers with this status or above, or raises, has
      its units given back; None: never.
    * `on_error`: what to do when the check fails: `"refuse"` with 503, or `"allow"`. A subject
      that the server finds malformed is refused with 400 all the same, or it would be a way around.

    Checks are not retried, whatever the client's own `retry` is: no request waits longer than the
    client's `timeout_seconds` for an answer. Before that it waits its turn for one of the client's
    connections, for as long as the server answers others.
    """

    def __init__(
        self,
        app: App,
        *,
        client: AsyncTollgate,
        policy: str | Callable[[HttpRequest], str | None],
        subject: Callable[
            [HttpRequest], Mapping[str, str] | Awaitable[Mapping[str, str] | None] | None
        ],
        cost: int | Callable[[HttpRequest], int] = 1,
        refusal: Form = "problem",
        refund_from_status: int | None = 500,
        on_error: Literal["refuse", "allow"] = "refuse",
    ) -> None:
        # A word that is not known would be taken for the other choice.
        for name, word, words in (
            ("on_error", on_error, ("refuse", "allow")),
            ("refusal", refusal, get_args(Form)),
        ):
            if word not in words:
                raise ValueError(f"{name} must be one of {', '.join(words)}, not {word!r}")
        self._app = app
        self._client = client.with_retry(None)
        self._policy = policy
        self._subject = subject
        self._cost = cost
        self._form = refusal
        self._refund_from_status = refund_from_status
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        check = await self._check(HttpRequest(scope))
        if check.answer is not None:
            await _give(check.answer, send)
        elif check.decision is not None:
            await self._pass_on(check.decision, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _check(self, request: HttpRequest) -> _Check:
        policy = self._policy(request) if callable(self._policy) else self._policy
        if policy is None:
            return _Check()
        try:
            subject = self._subject(request)
            if inspect.isawaitable(subject):
                subject = await subject
            if subject is None:
                return _Check()
            cost = self._cost(request) if callable(self._cost) else self._cost
            decision = await self._client.check(policy, subject, cost=cost)
        except NotIdentified as error:
            detail = str(error) or "who is asking cannot be told; authenticate first"
            return _Check(answer=self._fault(401, "Unauthorized", detail))
        except BadInput as error:
            return _Check(answer=self._fault(400, "Bad Request", error.detail))
        except TollgateError as error:
            return self._failed(policy, error)
        if decision.allowed:
            return _Check(decision=decision)
        return _Check(answer=refusal(decision, self._form))

    def _failed(self, policy: str, error: TollgateError) -> _Check:
        what = "passes unchecked" if self._on_error == "allow" else "is refused"
        _log.error("policy %r could not be checked, so the request %s: %s", policy, what, error)
        if self._on_error == "allow":
            return _Check()
        if isinstance(error, Unreachable | Unavailable):
            wait = {"retry-after": "1"}
            detail = "the rate limit cannot be checked now; try again in a moment"
            return _Check(answer=self._fault(503, "Service Unavailable", detail, wait))
        # An unknown policy or token: no wait of the client's helps.
        detail = "the rate limit cannot be checked; its operator has to look"
        return _Check(answer=self._fault(500, "Internal Server Error", detail))

    def _fault(
        self, status: int, title: str, detail: str, headers: Mapping[str, str] | None = None
    ) -> Answer:
        if self._form == "simple":
            document: dict[str, Any] = {"ok": False, "error": detail}
        else:
            document = {"type": "about:blank", "title": title, "status": status, "detail": detail}
        return _answer(status, document, self._form, headers or {})

    async def _pass_on(
        self, decision: Decision, scope: Scope, receive: Receive, send: Send
    ) -> None:
        has_begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                # Before the answer, so that who sees the error may ask again at once.
                if self._is_failure(message["status"]):
                    await self._give_back(decision)
                headers = [
                    (bytes(name), bytes(value)) for name, value in message.get("headers", ())
                ]
                message = {**message, "headers": _joined(headers, decision.headers)}
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception:
            if not has_begun and self._is_failure(500):
                await self._give_back(decision)
            raise

    def _is_failure(self, status: int) -> bool:
        return self._refund_from_status is not None and status >= self._refund_from_status

    async def _give_back(self, decision: Decision) -> None:
        if decision.receipt is None:
            return
        with noting_a_failed_refund():
            await self._client.refund(decision.receipt)


def _joined(
    headers: list[tuple[bytes, bytes]], added: Mapping[str, str]
) -> list[tuple[bytes, bytes]]:
    there = {name.lower() for name, _ in headers}
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in added.items()]
    return headers + [(name, value) for name, value in pairs if name in _LISTS or name not in there]


async def _give(answer: Answer, send: Send) -> None:
    headers = [(name.encode(), value.encode()) for name, value in answer.headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
