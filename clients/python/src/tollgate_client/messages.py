"""The mail relay's queue: adding, listing and commanding messages, and sending with an API key.

`tenant_id` may be left out where the client's token is that tenant's own. Times of the relay are
Unix seconds, as on the wire.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypedDict

from .call import Call, Section, given, segment
from .flow import Flow, Page, Transport, listing, operation
from .reading import read, read_list


class Attachment(TypedDict):
    """A file in a message; `attachment()` makes one."""

    filename: str
    content_type: str
    content_base64: str


def attachment(
    filename: str, content: bytes, content_type: str = "application/octet-stream"
) -> Attachment:
    """A file as a message carries it."""
    encoded = base64.b64encode(content).decode("ascii")
    return {"filename": filename, "content_type": content_type, "content_base64": encoded}


_MessageHead = TypedDict("_MessageHead", {"id": str, "account_id": str, "from": str})


class NewMessage(_MessageHead, total=False):
    """A message for the queue. The same id again within a tenant is not queued twice."""

    tenant_id: str
    to: Sequence[str]
    cc: Sequence[str]
    bcc: Sequence[str]
    reply_to: str
    subject: str
    body: str
    html: str
    headers: Mapping[str, str]
    attachments: Sequence[Attachment]
    # 0 immediate, 1 high, 2 medium (default), 3 low.
    priority: int
    deferred_ts: int
    batch_code: str


@dataclass(frozen=True)
class Rejected:
    """A message that was not taken, and why."""

    id: str
    reason: str


@dataclass(frozen=True)
class Added:
    """What came of adding messages; `queued` counts those that were there already, too."""

    queued: int
    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True)
class Message:
    """Where a message is in its life: pending, deferred, suspended, sent or error."""

    id: str
    account_id: str
    status: str
    priority: int
    tenant_id: str | None = None
    deferred_ts: int | None = None
    batch_code: str | None = None
    recipients: int | None = None
    attempts: int = 0
    last_error: str | None = None
    created_ts: int | None = None
    sent_ts: int | None = None
    error_ts: int | None = None


@dataclass(frozen=True)
class Attempt:
    """One attempt to send a message."""

    message_id: str
    account_id: str
    started_at: datetime
    finished_at: datetime
    instance: str
    smtp_text: str
    # sent, retry, throttled, error, or unknown: its server died meanwhile.
    outcome: str
    smtp_code: int | None = None


@dataclass(frozen=True)
class Commanded:
    """How many messages a command was about.

    If its answer was lost and the client asked again, those that the second time was about: a
    deletion that was done already tells of 0.
    """

    messages: int


@dataclass(frozen=True)
class MailStatus:
    """The relay at a glance: what waits now, and totals since the accounts were made."""

    tenants: int
    accounts: int
    pending: int
    deferred: int
    suspended: int
    sent: int
    errors: int
    rate_limited: int


@dataclass(frozen=True)
class Queued:
    """A message that was taken with an API key, and how many recipients still fit today."""

    status: str
    remaining: int
    id: str | None = None


@dataclass(frozen=True)
class Usage:
    """How an API key stands today."""

    api_key_id: str
    daily_limit: int
    emails_sent_today: int
    emails_remaining: int
    reset_time: datetime


class Messages(Section[Transport]):
    """`client.messages`"""

    @operation
    def add(self, messages: Iterable[NewMessage]) -> Flow[Added]:
        """Queues them. Rejected ones are named in the answer; if all are, it is a `BadInput`."""
        body = {"messages": [*messages]}
        return self._call(
            Call("POST", "/commands/add-messages", lambda answer: read(Added, answer), body=body)
        )

    @listing
    def list(
        self,
        *,
        tenant_id: str | None = None,
        status: Literal["pending", "deferred", "suspended", "sent", "error"] | None = None,
        account_id: str | None = None,
        batch_code: str | None = None,
        page_size: int | None = None,
    ) -> Flow[Page[Message]]:
        """All messages of a tenant, in the order they came."""
        params = {
            "tenant_id": tenant_id,
            "status": status,
            "account_id": account_id,
            "batch_code": batch_code,
            "limit": page_size,
        }
        return self._page(params, None)

    def _page(self, params: dict[str, Any], cursor: str | None) -> Flow[Page[Message]]:
        def read_page(answer: Any) -> Page[Message]:
            following = answer.get("next_cursor")
            return Page(
                read_list(Message, answer, "messages"),
                (lambda: self._page(params, str(following))) if following else None,
            )

        return self._call(Call("GET", "/messages", read_page, params={**params, "cursor": cursor}))

    @operation
    def attempts(self, id: str, *, tenant_id: str | None = None) -> Flow[tuple[Attempt, ...]]:
        """Every attempt to send one message, in order."""
        return self._call(
            Call(
                "GET",
                f"/messages/{segment(id)}/attempts",
                lambda answer: read_list(Attempt, answer, "attempts"),
                params={"tenant_id": tenant_id},
            )
        )


class Commands(Section[Transport]):
    """`client.commands`: what is done to messages in the queue."""

    @operation
    def run_now(
        self,
        *,
        tenant_id: str | None = None,
        batch_code: str | None = None,
        account_id: str | None = None,
        ids: Sequence[str] | None = None,
    ) -> Flow[Commanded]:
        """Tries deferred messages now instead of later. Limits hold all the same."""
        return self._command(
            "run-now",
            tenant_id=tenant_id,
            batch_code=batch_code,
            account_id=account_id,
            ids=ids if ids is None else [*ids],
        )

    @operation
    def suspend(
        self, *, tenant_id: str | None = None, batch_code: str | None = None
    ) -> Flow[Commanded]:
        """Holds a tenant's messages, or one batch's, also those that are added later."""
        return self._command("suspend", tenant_id=tenant_id, batch_code=batch_code)

    @operation
    def activate(
        self, *, tenant_id: str | None = None, batch_code: str | None = None
    ) -> Flow[Commanded]:
        """Lets them go again."""
        return self._command("activate", tenant_id=tenant_id, batch_code=batch_code)

    @operation
    def delete(
        self,
        *,
        tenant_id: str | None = None,
        batch_code: str | None = None,
        account_id: str | None = None,
        ids: Sequence[str] | None = None,
    ) -> Flow[Commanded]:
        """Deletes messages, but those being sent at this moment. Say which: not all at once."""
        return self._command(
            "delete-messages",
            tenant_id=tenant_id,
            batch_code=batch_code,
            account_id=account_id,
            ids=ids if ids is None else [*ids],
        )

    @operation
    def cleanup(
        self, *, tenant_id: str | None = None, older_than: str | None = None
    ) -> Flow[Commanded]:
        """Removes what was sent, or failed, longer ago than this (`30d`; `7d` if not said)."""
        return self._command("cleanup-messages", tenant_id=tenant_id, older_than=older_than)

    def _command(self, name: str, **body: Any) -> Flow[Commanded]:
        return self._call(
            Call(
                "POST",
                f"/commands/{name}",
                lambda answer: read(Commanded, answer),
                body=given(**body),
            )
        )


class Mail(Section[Transport]):
    """Sending with an API key, and the relay at a glance."""

    @operation
    def send(
        self,
        *,
        to: str | Sequence[str],
        subject: str,
        text: str | None = None,
        html: str | None = None,
        headers: Mapping[str, str] | None = None,
        account_id: str | None = None,
        from_: str | None = None,
        idempotency_key: str | None = None,
    ) -> Flow[Queued]:
        """Queues one mail against the API key's daily quota; its unit is recipients.

        Over the quota it raises `QuotaExceeded` with `retry_after`.
        """
        body = given(
            to=to if isinstance(to, str) else [*to],
            subject=subject,
            text=text,
            html=html,
            headers=headers and dict(headers),
            account_id=account_id,
            **{"from": from_},
        )
        return self._call(
            Call(
                "POST",
                "/api/v1/send",
                lambda answer: read(Queued, answer),
                body=body,
                headers={**self._key(), **self._idempotency(idempotency_key)},
            )
        )

    @operation
    def usage(self) -> Flow[Usage]:
        """How the API key stands today. Reading it adds nothing."""
        return self._call(
            Call("GET", "/api/v1/usage", lambda answer: read(Usage, answer), headers=self._key())
        )

    @operation
    def mail_status(self, *, tenant_id: str | None = None) -> Flow[MailStatus]:
        """The relay at a glance: of one tenant, or of all."""
        return self._call(
            Call(
                "GET",
                "/status",
                lambda answer: read(MailStatus, answer),
                params={"tenant_id": tenant_id},
            )
        )

    def _key(self) -> dict[str, str]:
        if self._settings.api_key is None:
            raise ValueError("send and usage need an API key: Tollgate(url, api_key=…)")
        return {"X-API-Key": self._settings.api_key}
