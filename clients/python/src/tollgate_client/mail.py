"""The mail relay: tenants, accounts, the queue, and sending with an API key.

Times of the relay are Unix seconds, as on the wire.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypedDict

from .call import Call, Section, given, segment
from .flow import Flow, Page, Transport, listing, operation
from .policies import nothing
from .reading import read, read_list


@dataclass(frozen=True)
class Tenant:
    """Who mail is sent for."""

    id: str
    name: str = ""
    report_url: str | None = None
    suspended: bool = False


@dataclass(frozen=True)
class SavedTenant:
    """What came of creating a tenant; a new `report_secret` is shown this once."""

    ok: bool = True
    report_secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Account:
    """An SMTP account. Its password is never shown."""

    id: str
    tenant_id: str
    host: str
    port: int
    user: str | None = None
    use_tls: bool = True
    limit_per_minute: int | None = None
    limit_per_hour: int | None = None
    limit_per_day: int | None = None
    limit_behavior: str = "defer"
    limit_unit: str = "messages"
    priority0_share: int = 0
    concurrency: int = 1


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


_MessageHead = TypedDict(
    "_MessageHead",
    {
        "id": str,
        "tenant_id": str,
        "account_id": str,
        "from": str,
        "to": Sequence[str],
        "subject": str,
    },
)


class NewMessage(_MessageHead, total=False):
    """A message for the queue. The same id again within a tenant is not queued twice."""

    body: str
    html: str
    cc: Sequence[str]
    bcc: Sequence[str]
    reply_to: str
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
    """What came of adding messages."""

    queued: int
    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True)
class Message:
    """Where a message is in its life: pending, deferred, suspended, sent or error."""

    id: str
    account_id: str
    status: str
    priority: int
    attempts: int = 0
    deferred_ts: float | None = None
    sent_ts: float | None = None
    last_error: str | None = None
    batch_code: str | None = None


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


class Tenants(Section[Transport]):
    """`client.tenants`"""

    @operation
    def create(
        self, *, id: str, name: str | None = None, report_url: str | None = None
    ) -> Flow[SavedTenant]:
        """Makes a tenant, or replaces it."""
        body = given(id=id, name=name or id, report_url=report_url)
        return self._call(
            Call("POST", "/tenant", lambda answer: read(SavedTenant, answer), body=body)
        )

    @operation
    def list(self) -> Flow[tuple[Tenant, ...]]:
        """All tenants."""
        return self._call(
            Call("GET", "/tenants", lambda answer: read_list(Tenant, answer, "tenants"))
        )

    @operation
    def delete(self, id: str) -> Flow[None]:
        """Takes it away with all that is its."""
        return self._call(Call("DELETE", f"/tenant/{segment(id)}", nothing))

    @operation
    def create_token(self, id: str) -> Flow[str]:
        """A token that reaches this tenant only. Shown this once."""
        path = f"/tenant/{segment(id)}/token"
        return self._call(Call("POST", path, lambda answer: str(answer["token"]), makes_anew=True))


class Accounts(Section[Transport]):
    """`client.accounts`"""

    @operation
    def create(
        self,
        *,
        id: str,
        tenant_id: str,
        host: str,
        port: int = 587,
        user: str | None = None,
        password: str | None = None,
        use_tls: bool | None = None,
        tls: Literal["none", "starttls", "implicit"] | None = None,
        root_cert: str | None = None,
        allow_plaintext_auth: bool | None = None,
        limit_per_minute: int | None = None,
        limit_per_hour: int | None = None,
        limit_per_day: int | None = None,
        limit_behavior: Literal["defer", "reject"] | None = None,
        limit_unit: Literal["messages", "recipients"] | None = None,
        priority0_share: int | None = None,
        concurrency: int | None = None,
    ) -> Flow[None]:
        """Makes an account, or replaces it. What is not given is as the server has it."""
        body = given(
            id=id,
            tenant_id=tenant_id,
            host=host,
            port=port,
            user=user,
            password=password,
            use_tls=use_tls,
            tls=tls,
            root_cert=root_cert,
            allow_plaintext_auth=allow_plaintext_auth,
            limit_per_minute=limit_per_minute,
            limit_per_hour=limit_per_hour,
            limit_per_day=limit_per_day,
            limit_behavior=limit_behavior,
            limit_unit=limit_unit,
            priority0_share=priority0_share,
            concurrency=concurrency,
        )
        return self._call(Call("POST", "/account", nothing, body=body))

    @operation
    def list(self, tenant_id: str) -> Flow[tuple[Account, ...]]:
        """The accounts of a tenant."""
        return self._call(
            Call(
                "GET",
                "/accounts",
                lambda answer: read_list(Account, answer, "accounts"),
                params={"tenant_id": tenant_id},
            )
        )

    @operation
    def delete(self, id: str, *, tenant_id: str) -> Flow[None]:
        """Takes an account away."""
        path = f"/account/{segment(id)}"
        return self._call(Call("DELETE", path, nothing, params={"tenant_id": tenant_id}))


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
        tenant_id: str,
        status: Literal["pending", "deferred", "suspended", "sent", "error"] | None = None,
        page_size: int | None = None,
    ) -> Flow[Page[Message]]:
        """All messages of a tenant, in the order they came."""
        return self._page({"tenant_id": tenant_id, "status": status, "limit": page_size}, None)

    def _page(self, params: dict[str, Any], cursor: str | None) -> Flow[Page[Message]]:
        def read_page(answer: Any) -> Page[Message]:
            following = answer.get("next_cursor")
            return Page(
                read_list(Message, answer, "messages"),
                (lambda: self._page(params, str(following))) if following else None,
            )

        return self._call(Call("GET", "/messages", read_page, params={**params, "cursor": cursor}))


class Commands(Section[Transport]):
    """`client.commands`: orders to the dispatcher. Each answers with what the server says of it."""

    @operation
    def run_now(self, *, tenant_id: str | None = None) -> Flow[Mapping[str, Any]]:
        """Looks for work at once."""
        return self._command("run-now", given(tenant_id=tenant_id))

    @operation
    def suspend(self, *, tenant_id: str, batch_code: str | None = None) -> Flow[Mapping[str, Any]]:
        """Holds a tenant's messages, or one batch's."""
        return self._command("suspend", given(tenant_id=tenant_id, batch_code=batch_code))

    @operation
    def activate(self, *, tenant_id: str, batch_code: str | None = None) -> Flow[Mapping[str, Any]]:
        """Lets them go again."""
        return self._command("activate", given(tenant_id=tenant_id, batch_code=batch_code))

    @operation
    def delete(self, *, tenant_id: str, ids: Sequence[str]) -> Flow[Mapping[str, Any]]:
        """Takes messages out of the queue."""
        return self._command("delete-messages", {"tenant_id": tenant_id, "ids": [*ids]})

    @operation
    def cleanup(
        self, *, tenant_id: str, older_than_seconds: int | None = None
    ) -> Flow[Mapping[str, Any]]:
        """Forgets messages that were sent or ended in error so long ago."""
        body = given(tenant_id=tenant_id, older_than_seconds=older_than_seconds)
        return self._command("cleanup-messages", body)

    def _command(self, name: str, body: dict[str, Any]) -> Flow[Mapping[str, Any]]:
        return self._call(Call("POST", f"/commands/{name}", dict, body=body))


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
            headers=dict(headers) if headers else None,
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
    def mail_status(self) -> Flow[Mapping[str, Any]]:
        """The relay at a glance, as the server tells it."""
        return self._call(Call("GET", "/status", dict))

    def _key(self) -> dict[str, str]:
        if self._settings.api_key is None:
            raise ValueError("send and usage need an API key: Tollgate(url, api_key=…)")
        return {"X-API-Key": self._settings.api_key}
