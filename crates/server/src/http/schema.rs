//! What OpenAPI says of bodies that are written or read by hand, and of answers many calls share.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::openapi::schema::AnyOfBuilder;
use utoipa::openapi::{Ref, RefOr, Schema};
use utoipa::{IntoParams, IntoResponses, PartialSchema, ToSchema};

/// What a check or a peek asks for.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckRequest {
    policy: String,
    /// Who is asking: the attributes the policy's limits count by.
    #[schema(required = false, example = json!({ "user": "ada" }))]
    subject: BTreeMap<String, String>,
    /// Units asked for.
    #[schema(required = false, minimum = 1, maximum = 4_294_967_295_u64, default = 1)]
    cost: u64,
}

/// Allowed or refused, and how each limit stands.
#[derive(Serialize, ToSchema)]
pub(crate) struct Decision {
    allowed: bool,
    policy: String,
    #[schema(minimum = 1, maximum = 4_294_967_295_u64)]
    cost: u64,
    limits: Vec<Limit>,
    /// Whole seconds until it passes, rounded up.
    #[schema(required = false)]
    retry_after: u64,
    /// The instant at which it passes.
    #[schema(required = false, format = DateTime)]
    retry_at: String,
    #[schema(format = DateTime)]
    decided_at: String,
    /// Gives back what this decision spent.
    #[schema(required = false)]
    receipt: String,
    /// Set when the store could not answer: `allow` or `local`.
    #[schema(required = false)]
    degraded: String,
}

/// One limit for this subject.
#[derive(Serialize, ToSchema)]
pub(crate) struct Limit {
    name: String,
    max: u64,
    used: u64,
    remaining: u64,
    /// When nothing is counted any more.
    #[schema(format = DateTime)]
    resets_at: String,
    /// Seconds until this limit lets the request pass; only if it does not now.
    #[schema(required = false)]
    retry_after: u64,
    /// Counts and reports, never refuses.
    #[schema(required = false)]
    shadow: bool,
}

/// An error (RFC 9457).
#[derive(Serialize, ToSchema)]
pub(crate) struct Problem {
    r#type: String,
    title: String,
    status: u16,
    detail: String,
    request_id: String,
    /// What is wrong, where one field is.
    #[schema(required = false)]
    field: String,
    /// Everything that is wrong with a policy.
    #[schema(required = false)]
    errors: Vec<Fault>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct Fault {
    /// Such as `limits[1].per`.
    field: String,
    detail: String,
}

/// What is wrong with one event of many.
#[derive(Serialize, ToSchema)]
pub(crate) struct EventProblem {
    r#type: String,
    title: String,
    status: u16,
    detail: String,
    #[schema(required = false)]
    field: String,
    /// Of the whole call.
    request_id: String,
}

/// A cost that can never fit, with the decision's members; or an idempotency key used twice. Every
/// refusal is a problem too, so it may be both.
pub(crate) enum Unprocessable {}

impl PartialSchema for Unprocessable {
    fn schema() -> RefOr<Schema> {
        let options = [Refusal::name(), Problem::name()].map(Ref::from_schema_name);
        let any = options.into_iter().fold(AnyOfBuilder::new(), |any, one| any.item(one));
        Schema::from(any.build()).into()
    }
}

impl ToSchema for Unprocessable {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((Refusal::name().into(), Refusal::schema()));
        schemas.push((Problem::name().into(), Problem::schema()));
        Refusal::schemas(schemas);
    }
}

/// A refusal: a problem with the decision's members.
#[derive(Serialize, ToSchema)]
pub(crate) struct Refusal {
    #[serde(flatten)]
    problem: Problem,
    #[serde(flatten)]
    decision: Decision,
    /// The names of the refusing limits.
    #[serde(rename = "violated-policies")]
    violated_policies: Vec<String>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct Refunded {
    refunded: bool,
    /// Why not: `already refunded`, `expired`, or `forgotten in a crash`.
    #[schema(required = false)]
    reason: String,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct Status {
    pub(crate) status: &'static str,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct Deleted {
    pub(crate) deleted: bool,
}

/// How a connection is made secret.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[allow(dead_code, reason = "read by the derive only")]
pub(crate) enum MailTls {
    None,
    Starttls,
    Implicit,
}

/// What happens to a message over a limit.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[allow(dead_code, reason = "read by the derive only")]
pub(crate) enum MailLimitBehavior {
    /// It waits until the limit has room.
    Defer,
    /// It ends in error `rate_limit_exceeded`.
    Reject,
}

/// What an account's limits count.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[allow(dead_code, reason = "read by the derive only")]
pub(crate) enum MailLimitUnit {
    Messages,
    /// To, cc and bcc.
    Recipients,
}

#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MailAttachment {
    filename: String,
    /// `application/octet-stream` if not said.
    #[schema(required = false)]
    content_type: String,
    content_base64: String,
}

/// One address, or a list of them.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "read by the derive only")]
pub(crate) enum MailAddresses {
    One(String),
    Many(Vec<String>),
}

#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AddMessages {
    #[schema(min_items = 1, max_items = 10000, value_type = Vec<super::mail::Message>)]
    messages: Vec<()>,
}

/// A problem that, where every message was rejected, says why for each.
#[derive(Serialize, ToSchema)]
pub(crate) struct NothingAdded {
    #[serde(flatten)]
    problem: Problem,
    #[schema(required = false)]
    queued: u64,
    #[schema(required = false, value_type = Vec<super::mail::Rejected>)]
    rejected: Vec<()>,
}

/// What is wrong with a message; the numbers where it has too many recipients for any day.
#[derive(Serialize, ToSchema)]
pub(crate) struct Unsendable {
    #[serde(flatten)]
    problem: Problem,
    #[schema(required = false)]
    requested: u64,
    #[schema(required = false)]
    limit: u64,
}

/// A refusal by a key's daily limit.
#[derive(Serialize, ToSchema)]
pub(crate) struct QuotaExceeded {
    #[serde(flatten)]
    problem: Problem,
    /// The names of the refusing limits.
    #[serde(rename = "violated-policies")]
    violated_policies: Vec<String>,
    current: u64,
    requested: u64,
    limit: u64,
    /// Whole seconds until it passes, rounded up.
    retry_after: u64,
    #[schema(format = DateTime)]
    retry_at: String,
}

/// A policy document: the same schema as in the configuration file.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PolicyDocument {
    /// As in the path, if at all.
    #[schema(required = false)]
    name: String,
    /// If it is given, the policy is changed only while this version is in force.
    #[schema(required = false)]
    version: u64,
    /// As `GET` answers it; not read.
    #[schema(required = false)]
    effective_from: String,
    limits: Vec<PolicyLimit>,
    /// `refuse` (default), `allow` or `local`.
    #[schema(required = false)]
    on_store_error: String,
    /// `interval` (default) or `sync`.
    #[schema(required = false)]
    durability: String,
    /// What it answers for at `/gate`: `/orders`, `POST /orders`, `/users/{id}`, `/api/*`.
    #[schema(required = false)]
    routes: Vec<String>,
    #[schema(required = false)]
    schedule: BTreeMap<String, serde_json::Value>,
}

/// A policy in force: its document's fields, with name, version and since when. Not made of
/// `PolicyDocument`: that one allows no other fields, so nothing can be added to it.
#[derive(Serialize, ToSchema)]
pub(crate) struct PolicyInForce {
    name: String,
    version: u64,
    #[schema(format = DateTime)]
    effective_from: String,
    limits: Vec<PolicyLimit>,
    #[schema(required = false)]
    on_store_error: String,
    #[schema(required = false)]
    durability: String,
    #[schema(required = false)]
    routes: Vec<String>,
    #[schema(required = false)]
    schedule: BTreeMap<String, serde_json::Value>,
}

#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PolicyLimit {
    name: String,
    max: u64,
    /// A duration (`60s`, `PT4S`) or a calendar unit (`minute`, `hour`, `day`, `week`, `month`).
    per: String,
    /// `fixed` (default), `sliding` or `bucket`.
    #[schema(required = false)]
    algorithm: String,
    #[schema(required = false)]
    by: Vec<String>,
    #[schema(required = false)]
    max_by: BTreeMap<String, BTreeMap<String, u64>>,
    #[schema(required = false)]
    burst: u64,
    #[schema(required = false)]
    resolution: String,
    #[schema(required = false)]
    timezone: String,
    #[schema(required = false)]
    private: bool,
    #[schema(required = false)]
    shadow: bool,
    #[schema(required = false)]
    ipv6_prefix: u8,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[allow(dead_code, reason = "read by the derive only")]
pub(crate) struct IdempotencyHeader {
    /// Makes a retry safe: an answer with an effect is recorded for 24 hours and replayed.
    #[param(rename = "Idempotency-Key", required = false)]
    idempotency_key: String,
}

macro_rules! problem_answer {
    ($(#[$doc:meta])* $name:ident, $status:literal) => {
        $(#[$doc])*
        #[derive(IntoResponses)]
        #[response(status = $status, content_type = "application/problem+json")]
        #[allow(dead_code, reason = "read by the derive only")]
        pub(crate) struct $name(Problem);
    };
}

problem_answer! {
    /// Bad input; `field` says where
    BadInput, 400
}
problem_answer! {
    /// No such thing
    NotFound, 404
}
/// A body that is too slow or too large.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "read by the derive only")]
pub(crate) enum TooLarge {
    /// The body did not arrive in time
    #[response(status = 408, content_type = "application/problem+json")]
    Slow(Problem),
    /// The body is too large
    #[response(status = 413, content_type = "application/problem+json")]
    Large(Problem),
}
problem_answer! {
    /// The store cannot answer, and the policy says to refuse then; or the body is large and there is
    /// no room for it now (`urn:tollgate:busy`)
    StoreDown, 503
}
problem_answer! {
    /// The id has a slot that was asked for with other inputs, or that was cancelled
    SlotConflict, 409
}
problem_answer! {
    /// No free place up to the horizon (`urn:tollgate:horizon-full`), or the store cannot answer
    NoSlot, 503
}

problem_answer! {
    /// It has unsent messages
    HasMail, 409
}

/// Without an API key, or with one that is switched off.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "read by the derive only")]
pub(crate) enum KeyNeeded {
    /// No key, or a wrong one
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthorised(Problem),
    /// The key is switched off
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(Problem),
}

/// Without a token where one is needed, or with one of another scope.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "read by the derive only")]
pub(crate) enum NoAccess {
    /// No token, or a wrong one
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthorised(Problem),
    /// The token's scope does not allow this
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(Problem),
}
