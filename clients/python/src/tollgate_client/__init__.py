"""Client of Tollgate, the rate limiter that answers: when may this happen?

`Tollgate` blocks, `AsyncTollgate` awaits; they have the same calls. `asgi.TollgateMiddleware`
protects an ASGI application, `limited` a function.
"""

from .asgi import Answer, HttpRequest, TollgateMiddleware, refusal
from .client import AsyncTollgate, Tollgate
from .decisions import Decision, LimitReport, Refund
from .decorator import limited
from .errors import (
    ApiError,
    BadAnswer,
    BadInput,
    Conflict,
    NotAuthorised,
    NotFound,
    NotIdentified,
    QuotaExceeded,
    Refused,
    TollgateError,
    Unavailable,
    Unreachable,
)
from .messages import (
    Added,
    Attachment,
    Attempt,
    Commanded,
    MailStatus,
    Message,
    NewMessage,
    Queued,
    Rejected,
    Usage,
    attachment,
)
from .policies import (
    Config,
    Limit,
    Override,
    Policy,
    PolicyChange,
    PolicyDocument,
    PolicyVersion,
    Token,
    TokenInForce,
)
from .retry import Retry
from .slots import AuditedSlot, Drift, Event, Recount, Slot, Window
from .tenants import Account, Key, SavedTenant, Tenant

__all__ = [
    "Account",
    "Added",
    "Answer",
    "ApiError",
    "AsyncTollgate",
    "Attachment",
    "Attempt",
    "AuditedSlot",
    "BadAnswer",
    "BadInput",
    "Commanded",
    "Config",
    "Conflict",
    "Decision",
    "Drift",
    "Event",
    "HttpRequest",
    "Key",
    "Limit",
    "LimitReport",
    "MailStatus",
    "Message",
    "NewMessage",
    "NotAuthorised",
    "NotFound",
    "NotIdentified",
    "Override",
    "Policy",
    "PolicyChange",
    "PolicyDocument",
    "PolicyVersion",
    "Queued",
    "QuotaExceeded",
    "Recount",
    "Refund",
    "Refused",
    "Rejected",
    "Retry",
    "SavedTenant",
    "Slot",
    "Tenant",
    "Token",
    "TokenInForce",
    "Tollgate",
    "TollgateError",
    "TollgateMiddleware",
    "Unavailable",
    "Unreachable",
    "Usage",
    "Window",
    "attachment",
    "limited",
    "refusal",
]
