"""May this happen now? Decisions, receipts, and the calls that make and return them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

import httpx

from .call import Call, Section, document_of
from .errors import Refused, TollgateError
from .flow import Flow, Pause, Transport, operation
from .reading import read

_log = logging.getLogger("tollgate_client")

_RELAYED = (
    "ratelimit-policy",
    "ratelimit",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "retry-after",
)
_SHORTEST_PAUSE_SECONDS = 0.01


@dataclass(frozen=True)
class LimitReport:
    """How one limit stands."""

    name: str
    max: int
    used: int
    remaining: int
    resets_at: datetime
    retry_after: int | None = None
    shadow: bool = False


@dataclass(frozen=True)
class Decision:
    """The answer to a check or a peek. Refused is an answer too: look at `allowed`.

    It is true where it is allowed, so that `if client.check(…)` does what it says.
    """

    allowed: bool
    policy: str
    cost: int
    limits: tuple[LimitReport, ...]
    decided_at: datetime
    retry_after: int | None = None
    retry_at: datetime | None = None
    receipt: str | None = field(default=None, repr=False)
    # "allow" or "local" while the store is down and the policy says so.
    degraded: str | None = None
    # Of a refusal: a sentence for a person, and the names of the limits that refused.
    detail: str | None = None
    violated: tuple[str, ...] = ()
    # RateLimit and its kin, as the server wrote them, to be handed on.
    headers: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType({}), repr=False, compare=False
    )

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def never_fits(self) -> bool:
        """Whether no wait helps: the cost is above what a limit holds."""
        return not self.allowed and self.retry_at is None

    @property
    def retry_in_seconds(self) -> float | None:
        """The exact wait, by the server's clock alone."""
        if self.retry_at is None:
            return None
        return (self.retry_at - self.decided_at).total_seconds()

    @property
    def remaining(self) -> int | None:
        """What is left in the tightest limit, shadow limits aside."""
        return min((limit.remaining for limit in self.limits if not limit.shadow), default=None)

    @property
    def sentence(self) -> str:
        if self.detail:
            return self.detail
        return f"policy {self.policy!r} {'allows' if self.allowed else 'refuses'} this"

    def require(self) -> Decision:
        """Itself if allowed, else raises `Refused`."""
        if not self.allowed:
            raise Refused(self)
        return self


@dataclass(frozen=True)
class Refund:
    """Whether a receipt's units were given back, and if not, why. True if they were."""

    refunded: bool
    reason: str | None = None

    def __bool__(self) -> bool:
        return self.refunded


def require_wait(seconds: float) -> None:
    """A wait is 0 or more seconds; NaN is neither less nor more than anything, so never over."""
    if not seconds >= 0:
        raise ValueError("wait must be 0 or more seconds")


@contextmanager
def noting_a_failed_refund() -> Iterator[None]:
    """Where something worse is being told already, a refund that fails is only logged."""
    try:
        yield
    except TollgateError as error:
        _log.warning("what a failed call had spent could not be given back: %s", error)


class Checks(Section[Transport]):
    """Checks, peeks and refunds: the heart of the client."""

    @operation
    def check(
        self,
        policy: str,
        subject: Mapping[str, str] | None = None,
        *,
        cost: int = 1,
        wait: float = 0.0,
        idempotency_key: str | None = None,
    ) -> Flow[Decision]:
        """May it happen now? If so it is counted, in every limit of the policy or in none.

        With `wait`, a refused check is asked again at its `retry_at`, for up to so many seconds;
        a wait that would end later is not begun, and the refusal is the answer.
        """
        require_wait(wait)
        call: Call[Any] = Call(
            "POST",
            "/api/v1/check",
            read=lambda document: document,
            body={"policy": policy, "subject": dict(subject or {}), "cost": cost},
            # A refusal is not recorded, so the same key serves when it is asked again.
            headers=self._idempotency(idempotency_key),
        )
        ends = time.monotonic() + wait
        while True:
            decision = _decision((yield from self._answer(call)))
            pause = decision.retry_in_seconds
            if decision.allowed or pause is None or time.monotonic() + pause > ends:
                return decision
            yield Pause(max(pause, _SHORTEST_PAUSE_SECONDS))

    @operation
    def peek(
        self, policy: str, subject: Mapping[str, str] | None = None, *, cost: int = 1
    ) -> Flow[Decision]:
        """Might it happen now? Nothing is counted."""
        body = {"policy": policy, "subject": dict(subject or {}), "cost": cost}
        call = Call("POST", "/api/v1/peek", read=lambda document: document, body=body)
        return _decision((yield from self._answer(call)))

    @operation
    def refund(
        self, receipt: str | Decision, *, idempotency_key: str | None = None
    ) -> Flow[Refund]:
        """Gives back what an allowed decision spent, once."""
        if isinstance(receipt, Decision):
            if receipt.receipt is None:
                raise ValueError("this decision has no receipt: it spent nothing in the store")
            receipt = receipt.receipt
        return self._call(
            Call(
                "POST",
                "/api/v1/refund",
                read=lambda document: read(Refund, document),
                body={"receipt": receipt},
                headers=self._idempotency(idempotency_key),
            )
        )


def _decision(response: httpx.Response) -> Decision:
    document = document_of(response)
    # 429 and 422 carry the decision beside the problem; a proxy's own 429 does not.
    if response.status_code not in (200, 422, 429) or "allowed" not in document:
        document_of(response, require_success=True)
    decision = read(Decision, document)
    headers = {name: response.headers[name] for name in _RELAYED if name in response.headers}
    return replace(
        decision,
        violated=tuple(document.get("violated-policies", ())),
        headers=MappingProxyType(headers),
    )
