"""What administrators set: policies, overrides, the one-limit config, tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypedDict

from .call import Call, Section, given, segment
from .flow import Flow, Transport, operation
from .reading import read, read_list


class _LimitName(TypedDict):
    name: str
    max: int
    per: str


class Limit(_LimitName, total=False):
    """At most `max` units `per` window, counted `by` some of the subject's attributes."""

    algorithm: Literal["fixed", "sliding", "bucket"]
    by: Sequence[str]
    private: bool
    burst: int
    resolution: str
    timezone: str
    max_by: Mapping[str, Mapping[str, int]]
    shadow: bool
    # An IPv6 address counts as its network of so many bits: 64 if not said.
    ipv6_prefix: int


class _PolicyLimits(TypedDict):
    limits: Sequence[Limit]


class PolicyDocument(_PolicyLimits, total=False):
    """A policy, as in the configuration file."""

    # Such as `/orders`, `POST /orders`, `/users/{id}` and `/api/*`.
    routes: Sequence[str]
    on_store_error: Literal["refuse", "allow", "local"]
    durability: Literal["interval", "sync"]
    schedule: Mapping[str, Any]


@dataclass(frozen=True)
class Policy:
    """A policy in force. `document` is what was put."""

    name: str
    version: int
    effective_from: datetime
    document: Mapping[str, Any]


@dataclass(frozen=True)
class PolicyChange:
    """What came of putting a policy. The limits in `restarted` count anew."""

    name: str
    version: int
    effective_from: datetime
    changed: bool
    restarted: tuple[str, ...]
    detail: str


@dataclass(frozen=True)
class PolicyVersion:
    """Who made a version, when, and what it said; `policy` is None where it was deleted."""

    version: int
    created_at: datetime
    created_by: str
    deleted: bool
    policy: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Override:
    """One subject's own max in one limit."""

    policy: str
    limit: str
    max: int
    created_by: str
    created_at: datetime
    # Values of private limits are not shown.
    subject: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Config:
    """A policy of one limit that counts everybody together: `/admin/rate-limit/config`."""

    config_name: str
    max_per_window: int
    window_size: str
    version: int
    effective_from: datetime


@dataclass(frozen=True)
class Token:
    """A new token, shown this once; it stays out of the repr."""

    token: str
    scope: str
    name: str

    def __repr__(self) -> str:
        return f"Token(token=…, scope={self.scope!r}, name={self.name!r})"


@dataclass(frozen=True)
class TokenInForce:
    """A token as it is listed: what to revoke it by, not what it is."""

    id: str
    name: str
    scope: str
    created_at: datetime


class Policies(Section[Transport]):
    """`client.policies`"""

    @operation
    def list(self) -> Flow[tuple[Policy, ...]]:
        """The policies in force."""

        def rows(answer: Any) -> tuple[Policy, ...]:
            return tuple(_policy(row) for row in answer["policies"])

        return self._call(Call("GET", "/admin/policies", rows))

    @operation
    def get(self, name: str) -> Flow[Policy]:
        """One policy."""
        return self._call(Call("GET", f"/admin/policies/{segment(name)}", _policy))

    @operation
    def put(
        self, name: str, document: PolicyDocument, *, version: int | None = None
    ) -> Flow[PolicyChange]:
        """Makes or replaces a policy. It is in force at the next decision.

        With a `version`, only while that is the one in force: `Conflict` if another is by now.
        """
        body = document if version is None else {**document, "version": version}
        return self._call(
            Call(
                "PUT",
                f"/admin/policies/{segment(name)}",
                lambda answer: read(PolicyChange, answer),
                body=body,
            )
        )

    @operation
    def delete(self, name: str) -> Flow[None]:
        """Takes a policy out of force. Its versions are kept."""
        path = f"/admin/policies/{segment(name)}"
        return self._call(Call("DELETE", path, nothing, takes_away=True))

    @operation
    def versions(self, name: str) -> Flow[tuple[PolicyVersion, ...]]:
        """Every version it ever had, newest first."""
        path = f"/admin/policies/{segment(name)}/versions"
        return self._call(
            Call("GET", path, lambda answer: read_list(PolicyVersion, answer, "versions"))
        )


class Overrides(Section[Transport]):
    """`client.overrides`"""

    @operation
    def list(self) -> Flow[tuple[Override, ...]]:
        """The overrides in force."""
        return self._call(
            Call("GET", "/admin/overrides", lambda answer: read_list(Override, answer, "overrides"))
        )

    @operation
    def put(self, policy: str, limit: str, subject: Mapping[str, str], max: int) -> Flow[Override]:
        """Gives one subject its own max."""
        body = {"policy": policy, "limit": limit, "subject": dict(subject), "max": max}
        return self._call(
            Call("PUT", "/admin/overrides", lambda answer: read(Override, answer), body=body)
        )

    @operation
    def delete(self, policy: str, limit: str, subject: Mapping[str, str]) -> Flow[None]:
        """Takes it away again."""
        body = {"policy": policy, "limit": limit, "subject": dict(subject)}
        return self._call(Call("DELETE", "/admin/overrides", nothing, body=body, takes_away=True))


class Configs(Section[Transport]):
    """`client.configs`: how many per window, nothing else."""

    @operation
    def put(self, config_name: str, *, max_per_window: int, window_size: str) -> Flow[Config]:
        """Sets it; everything else the policy says stays."""
        body = {
            "configName": config_name,
            "maxPerWindow": max_per_window,
            "windowSize": window_size,
        }
        return self._call(
            Call("POST", "/admin/rate-limit/config", lambda answer: read(Config, answer), body=body)
        )

    @operation
    def get(self, config_name: str = "default") -> Flow[Config]:
        """What is in force."""
        return self._call(
            Call(
                "GET",
                "/admin/rate-limit/config",
                lambda answer: read(Config, answer),
                params={"name": config_name},
            )
        )

    @operation
    def flush_cache(self) -> Flow[None]:
        """Makes the server read everything in force from the store again."""
        return self._call(Call("POST", "/admin/rate-limit/cache/flush", nothing))


class Tokens(Section[Transport]):
    """`client.tokens`"""

    @operation
    def create(self, *, scope: Literal["admin", "check"], name: str | None = None) -> Flow[Token]:
        """Makes a token. The first must be an admin's: from then on tokens are asked for."""
        return self._call(
            Call(
                "POST",
                "/admin/tokens",
                lambda answer: read(Token, answer),
                body=given(scope=scope, name=name),
                makes_anew=True,
            )
        )

    @operation
    def list(self) -> Flow[tuple[TokenInForce, ...]]:
        """The tokens in force, oldest first, but that of the server's environment."""
        return self._call(
            Call("GET", "/admin/tokens", lambda answer: read_list(TokenInForce, answer, "tokens"))
        )

    @operation
    def delete(self, id: str) -> Flow[None]:
        """Revokes a token. The last admin's stays (`Conflict`): make another first."""
        path = f"/admin/tokens/{segment(id)}"
        return self._call(Call("DELETE", path, nothing, takes_away=True))


def _policy(document: Mapping[str, Any]) -> Policy:
    rest = dict(document)
    head = {name: rest.pop(name, None) for name in ("name", "version", "effective_from")}
    return read(Policy, {**head, "document": rest})


def nothing(_answer: Any) -> None:
    """The answer says only that it was done."""
