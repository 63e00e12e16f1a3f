"""The two clients. They differ only in how their calls are carried out."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, TypeVar

import httpx

from .call import Settings
from .decisions import Checks
from .flow import AsyncTransport, SyncTransport, Transport
from .messages import Commands, Mail, Messages
from .policies import Configs, Overrides, Policies, Tokens
from .retry import Retry
from .slots import Slots
from .system import System
from .tenants import Accounts, Keys, Tenants

_DEFAULT_SERVER = "http://127.0.0.1:8080"
_DEFAULT_RETRY = Retry()
# A burst of 300 checks is answered soonest over about 10: with 100, httpx's own work takes longer.
_MAX_CONNECTIONS = 10
_LONGEST_TIMEOUT_SECONDS = 86_400

Self = TypeVar("Self", bound="_Client[Any]")


class _Client(Checks[Transport], System[Transport], Mail[Transport]):
    """Everything the server answers to."""

    def __init__(self, transport: Transport, settings: Settings) -> None:
        super().__init__(transport, settings)
        self.slots = Slots(transport, settings)
        self.policies = Policies(transport, settings)
        self.overrides = Overrides(transport, settings)
        self.configs = Configs(transport, settings)
        self.tokens = Tokens(transport, settings)
        self.tenants = Tenants(transport, settings)
        self.accounts = Accounts(transport, settings)
        self.keys = Keys(transport, settings)
        self.messages = Messages(transport, settings)
        self.commands = Commands(transport, settings)

    def with_retry(self: Self, retry: Retry | None) -> Self:
        """The same client and connections, with other retries, or with none.

        Without retries no idempotency key is made up either, and a check is at its fastest.
        """
        other = object.__new__(type(self))
        _Client.__init__(other, self._transport, replace(self._settings, retry=retry))
        return other


class Tollgate(_Client[SyncTransport]):
    """The client that blocks. Threads may share it.

    Without a `url` or `token` those of `TOLLGATE_SERVER` and `TOLLGATE_TOKEN` are taken, as the
    command line does. `api_key` is for `send` and `usage`. A `transport` of httpx sets
    certificates, a proxy or a Unix socket. `timeout_seconds` bounds one attempt as a whole, all but
    the look-up of the server's name; a call that finds all of `max_connections` in use waits for
    one first, for as long as the server answers the others.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        api_key: str | None = None,
        timeout_seconds: float = 5.0,
        retry: Retry | None = _DEFAULT_RETRY,
        max_connections: int = _MAX_CONNECTIONS,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        settings = _settings(token, api_key, timeout_seconds, retry)
        http = httpx.Client(
            base_url=_server(url), limits=_limits(max_connections), transport=transport
        )
        super().__init__(SyncTransport(http, max_connections), settings)

    def close(self) -> None:
        """Closes the connections, also those of clients made by `with_retry`."""
        self._transport.http.close()

    def __enter__(self) -> Tollgate:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class AsyncTollgate(_Client[AsyncTransport]):
    """The client that awaits, on asyncio. It takes the same arguments."""

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        api_key: str | None = None,
        timeout_seconds: float = 5.0,
        retry: Retry | None = _DEFAULT_RETRY,
        max_connections: int = _MAX_CONNECTIONS,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        settings = _settings(token, api_key, timeout_seconds, retry)
        http = httpx.AsyncClient(
            base_url=_server(url), limits=_limits(max_connections), transport=transport
        )
        super().__init__(AsyncTransport(http, max_connections), settings)

    async def aclose(self) -> None:
        """Closes the connections, also those of clients made by `with_retry`."""
        await self._transport.http.aclose()

    async def __aenter__(self) -> AsyncTollgate:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()


def _server(url: str | None) -> httpx.URL:
    text = (url or os.environ.get("TOLLGATE_SERVER") or _DEFAULT_SERVER).strip()
    try:
        parsed = httpx.URL(text)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    is_http = parsed.scheme in ("http", "https") and parsed.host and (parsed.port or 0) <= 65535
    if not is_http or parsed.query:
        # What was given is not repeated: it may hold a password.
        raise ValueError(f"the server's address must be a URL such as {_DEFAULT_SERVER}")
    return parsed


def _limits(max_connections: int) -> httpx.Limits:
    if max_connections < 1:
        raise ValueError("max_connections must be at least 1")
    return httpx.Limits(max_connections=max_connections, max_keepalive_connections=max_connections)


def _settings(
    token: str | None, api_key: str | None, timeout_seconds: float, retry: Retry | None
) -> Settings:
    # Written so that what is no number at all is refused too.
    if not 0 < timeout_seconds <= _LONGEST_TIMEOUT_SECONDS:
        raise ValueError(f"timeout_seconds must be above 0 and at most {_LONGEST_TIMEOUT_SECONDS}")
    token = token or os.environ.get("TOLLGATE_TOKEN")
    return Settings(_secret(token, "token"), _secret(api_key, "api_key"), timeout_seconds, retry)


def _secret(value: str | None, name: str) -> str | None:
    """Without the white space around it, which a file has at its end."""
    value = (value or "").strip()
    if not all("!" <= character <= "~" for character in value):
        raise ValueError(
            f"the {name} holds a space, a line end or another character that no header can carry; "
            "give it as it was shown when it was made"
        )
    return value or None
