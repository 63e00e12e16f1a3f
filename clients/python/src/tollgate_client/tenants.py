"""The mail relay's books: tenants, their SMTP accounts, and the API keys that send through them.

`tenant_id` may be left out where the client's token is that tenant's own. Times of the relay are
Unix seconds, as on the wire.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .call import Call, Section, given, segment
from .flow import Flow, Transport, operation
from .policies import nothing
from .reading import read, read_list


@dataclass(frozen=True)
class Tenant:
    """Who mail is sent for. The messages of a suspended one wait."""

    id: str
    name: str
    report_url: str | None = None
    suspended: bool = False
    has_token: bool = False
    created_ts: int | None = None


@dataclass(frozen=True)
class SavedTenant:
    """What came of creating a tenant. A `report_secret` that was made now is shown this once."""

    created: bool = True
    report_secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Account:
    """An SMTP account. Its password is never shown."""

    id: str
    tenant_id: str
    host: str
    port: int
    user: str | None = None
    has_password: bool = False
    from_address: str | None = None
    use_tls: bool = True
    tls: str | None = None
    limit_per_minute: int | None = None
    limit_per_hour: int | None = None
    limit_per_day: int | None = None
    limit_behavior: str = "defer"
    limit_unit: str = "messages"
    priority0_share: int = 0
    concurrency: int = 1
    # Nothing is sent before this.
    resume_ts: int | None = None


@dataclass(frozen=True)
class Key:
    """An API key for `send`. `api_key` is the secret: shown when it is made, and never again."""

    id: str
    tenant_id: str
    account_id: str
    name: str
    daily_limit: int
    timezone: str
    enabled: bool
    created_ts: int | None = None
    api_key: str | None = field(default=None, repr=False)


class Tenants(Section[Transport]):
    """`client.tenants`"""

    @operation
    def create(
        self,
        *,
        id: str,
        name: str | None = None,
        report_url: str | None = None,
        report_secret: str | None = None,
    ) -> Flow[SavedTenant]:
        """Makes a tenant, or changes its name and where its reports go.

        A `report_url` without a `report_secret` has the server make one. If that answer is lost
        (`Unreachable`), give one of your own: it replaces what nobody saw.
        """
        body = given(id=id, name=name, report_url=report_url, report_secret=report_secret)
        return self._call(
            Call(
                "POST",
                "/tenant",
                lambda answer: read(SavedTenant, answer),
                body=body,
                # The server makes a secret, and shows it in one answer only.
                makes_anew=report_url is not None and report_secret is None,
            )
        )

    @operation
    def list(self) -> Flow[tuple[Tenant, ...]]:
        """All tenants; with a tenant's token only that one."""
        return self._call(
            Call("GET", "/tenants", lambda answer: read_list(Tenant, answer, "tenants"))
        )

    @operation
    def delete(self, id: str) -> Flow[None]:
        """Takes it away with all that is its; unsent messages stand against it (`Conflict`)."""
        return self._call(Call("DELETE", f"/tenant/{segment(id)}", nothing, takes_away=True))

    @operation
    def create_token(self, id: str) -> Flow[str]:
        """A token that reaches this tenant only, shown this once. The one before ends."""
        path = f"/tenant/{segment(id)}/token"
        return self._call(Call("POST", path, lambda answer: str(answer["token"]), makes_anew=True))


class Accounts(Section[Transport]):
    """`client.accounts`"""

    @operation
    def create(
        self,
        *,
        id: str,
        host: str,
        tenant_id: str | None = None,
        port: int = 587,
        user: str | None = None,
        password: str | None = None,
        from_address: str | None = None,
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
        """Makes an account, or replaces it. A limit that is 0 or not given is none."""
        body = given(
            id=id,
            tenant_id=tenant_id,
            host=host,
            port=port,
            user=user,
            password=password,
            from_address=from_address,
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
    def list(self, tenant_id: str | None = None) -> Flow[tuple[Account, ...]]:
        """The accounts of a tenant, or of all."""
        return self._call(
            Call(
                "GET",
                "/accounts",
                lambda answer: read_list(Account, answer, "accounts"),
                params={"tenant_id": tenant_id},
            )
        )

    @operation
    def delete(self, id: str, *, tenant_id: str | None = None) -> Flow[None]:
        """Takes an account away; its unsent messages stand against it (`Conflict`)."""
        path = f"/account/{segment(id)}"
        params = {"tenant_id": tenant_id}
        return self._call(Call("DELETE", path, nothing, params=params, takes_away=True))


class Keys(Section[Transport]):
    """`client.keys`: API keys for `send`."""

    @operation
    def create(
        self,
        *,
        account_id: str,
        tenant_id: str | None = None,
        name: str | None = None,
        daily_limit: int | None = None,
        timezone: str | None = None,
    ) -> Flow[Key]:
        """Makes a key. Its secret, `api_key`, is shown this once."""
        body = given(
            account_id=account_id,
            tenant_id=tenant_id,
            name=name,
            daily_limit=daily_limit,
            timezone=timezone,
        )
        return self._call(
            Call("POST", "/keys", lambda answer: read(Key, answer), body=body, makes_anew=True)
        )

    @operation
    def list(self, tenant_id: str | None = None) -> Flow[tuple[Key, ...]]:
        """The keys of a tenant, or of all."""
        return self._call(
            Call(
                "GET",
                "/keys",
                lambda answer: read_list(Key, answer, "keys"),
                params={"tenant_id": tenant_id},
            )
        )

    @operation
    def put(
        self, id: str, *, enabled: bool | None = None, daily_limit: int | None = None
    ) -> Flow[Key]:
        """Switches a key on or off, or changes its daily limit."""
        body = given(enabled=enabled, daily_limit=daily_limit)
        path = f"/keys/{segment(id)}"
        return self._call(Call("PUT", path, lambda answer: read(Key, answer), body=body))

    @operation
    def delete(self, id: str) -> Flow[None]:
        """Deletes a key. Messages it sent stay."""
        return self._call(Call("DELETE", f"/keys/{segment(id)}", nothing, takes_away=True))
