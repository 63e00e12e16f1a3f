//! Policies and their versions.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::Serialize;
use serde_json::Value;
use tollgate::core::{Limit, Rule};
use tollgate::{Compiled, Policy};
use utoipa::ToSchema;

use crate::auth::Caller;
use crate::body::{self, parse};
use crate::http::schema;
use crate::problem::Problem;
use crate::state::App;
use crate::strict::StrictValue;

/// A policy in force: its document's fields, with name, version and since when.
#[derive(Serialize)]
pub(crate) struct PolicyInForce {
    name: String,
    version: u64,
    effective_from: String,
    #[serde(flatten)]
    document: Value,
}

impl PolicyInForce {
    fn of(compiled: &Compiled) -> Self {
        Self {
            name: compiled.policy().name().to_owned(),
            version: compiled.version(),
            effective_from: compiled.effective_from().to_string(),
            document: compiled.policy().document().clone(),
        }
    }
}

#[derive(Serialize, ToSchema)]
pub(crate) struct PolicyList {
    #[schema(value_type = Vec<schema::PolicyInForce>)]
    policies: Vec<PolicyInForce>,
}

/// What came of a change.
#[derive(Serialize, ToSchema)]
pub(crate) struct PolicyChange {
    name: String,
    version: u64,
    effective_from: String,
    /// Whether a new version was made.
    changed: bool,
    /// Limits that count anew, because what they count by changed.
    restarted: Vec<String>,
    /// The same for people.
    detail: String,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct PolicyVersions {
    name: String,
    /// Newest first.
    versions: Vec<PolicyVersion>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct PolicyVersion {
    version: u64,
    created_at: String,
    created_by: String,
    /// This version took the policy out of force.
    deleted: bool,
    /// The document, unless deleted.
    #[schema(value_type = Option<schema::PolicyDocument>)]
    policy: Option<Value>,
}

/// The policies in force.
#[utoipa::path(get, path = "/admin/policies", tag = "policies",
    responses((status = 200, body = PolicyList), schema::BadInput, schema::NoAccess))]
pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<PolicyList> {
    let policies = app.gate.policies();
    Json(PolicyList { policies: policies.iter().map(|policy| PolicyInForce::of(policy)).collect() })
}

/// One policy.
#[utoipa::path(get, path = "/admin/policies/{name}", tag = "policies",
    params(("name" = String, Path)),
    responses((status = 200, body = schema::PolicyInForce), schema::BadInput, schema::NotFound,
        schema::StoreDown, schema::NoAccess))]
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Json<PolicyInForce>, Problem> {
    let policy = app.gate.policy(&name).map_err(|error| app.failed(error))?;
    Ok(Json(PolicyInForce::of(&policy)))
}

/// Makes or replaces a policy. It is in force at the next decision. What `GET` answers may be sent
/// back, changed: then it replaces the version it says, and no other.
#[utoipa::path(put, path = "/admin/policies/{name}", tag = "policies",
    params(("name" = String, Path)),
    request_body = schema::PolicyDocument,
    responses(
        (status = 201, description = "Made", body = PolicyChange),
        (status = 200, description = "Replaced, or unchanged", body = PolicyChange),
        (status = 409, description = "Another version is in force than it says",
            body = schema::Problem, content_type = "application/problem+json"),
        schema::BadInput, schema::StoreDown, schema::NoAccess, schema::TooLarge))]
pub(crate) async fn put(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    request: axum::extract::Request,
) -> Result<(StatusCode, Json<PolicyChange>), Problem> {
    let bytes = body::read(request.into_body(), app.body_limits).await?;
    let StrictValue(mut document) = parse(&bytes)?;
    let onto = take_what_get_adds(&name, &mut document)?;
    let policy =
        Policy::from_json(&name, document).map_err(|invalid| Problem::bad_policy(&invalid))?;
    let gate = app.gate.clone();
    let change = async move {
        match onto {
            Some(version) => gate.apply_onto(version, &policy, &caller.name).await,
            None => gate.apply(&policy, &caller.name).await.map(Some),
        }
    };
    let applied = app.finish(change).await?.ok_or_else(|| overtaken(&name))?;
    let status = if applied.created { StatusCode::CREATED } else { StatusCode::OK };
    let limits = applied.policy.policy().limits();
    let by_share = |limit: &Limit| matches!(limit.rule, Rule::Bucket { burst: None, .. });
    let has_buckets = limits.iter().any(by_share);
    let detail = match (applied.changed, applied.restarted.as_slice()) {
        (false, _) => "nothing changed".to_owned(),
        (true, []) if applied.created => "in force".to_owned(),
        (true, []) if has_buckets => {
            "in force; limits that were there keep their counts, buckets stay as full as they were"
                .to_owned()
        }
        (true, []) => "in force; limits that were there keep their counts".to_owned(),
        (true, names) => format!(
            "in force; counting starts anew for {}, or goes on where it stood when it was last so",
            names.join(", ")
        ),
    };
    Ok((
        status,
        Json(PolicyChange {
            name,
            version: applied.policy.version(),
            effective_from: applied.policy.effective_from().to_string(),
            changed: applied.changed,
            restarted: applied.restarted,
            detail,
        }),
    ))
}

/// Leaves the document as it can be stored. The version it was read at, if it says one.
fn take_what_get_adds(name: &str, document: &mut Value) -> Result<Option<u64>, Problem> {
    let Some(document) = document.as_object_mut() else { return Ok(None) };
    document.remove("effective_from");
    if document.remove("name").is_some_and(|said| said != *name) {
        let detail = format!("name: this is policy {name:?}, by its path; leave the name out");
        return Err(Problem::bad_field("name", detail));
    }
    document.remove("version").map_or(Ok(None), |version| {
        let detail = "version: must be the number that GET answered, or left out";
        version.as_u64().map(Some).ok_or_else(|| Problem::bad_field("version", detail))
    })
}

fn overtaken(name: &str) -> Problem {
    let detail = format!(
        "another version of policy {name:?} is in force by now, or none: read it again and change \
         that, or leave \"version\" out to replace whatever there is"
    );
    Problem::new(StatusCode::CONFLICT, "urn:tollgate:conflict", detail).field("version")
}

/// Takes a policy out of force. Its versions are kept.
#[utoipa::path(delete, path = "/admin/policies/{name}", tag = "policies",
    params(("name" = String, Path)),
    responses((status = 200, body = schema::Deleted), schema::BadInput, schema::NotFound,
        schema::StoreDown, schema::NoAccess))]
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<schema::Deleted>, Problem> {
    let gate = app.gate.clone();
    app.finish(async move { gate.delete_policy(&name, &caller.name).await }).await?;
    Ok(Json(schema::Deleted { deleted: true }))
}

/// Every version a policy ever had: who, when and what.
#[utoipa::path(get, path = "/admin/policies/{name}/versions", tag = "policies",
    params(("name" = String, Path)),
    responses((status = 200, body = PolicyVersions), schema::BadInput, schema::NotFound,
        schema::StoreDown, schema::NoAccess))]
pub(crate) async fn versions(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Json<PolicyVersions>, Problem> {
    let versions = app.gate.policy_versions(&name).await.map_err(|error| app.failed(error))?;
    let versions = versions
        .into_iter()
        .map(|version| PolicyVersion {
            version: version.version,
            created_at: version.created_at.to_string(),
            created_by: version.created_by,
            deleted: version.document.is_none(),
            policy: version.document.and_then(|document| serde_json::from_str(&document).ok()),
        })
        .collect();
    Ok(Json(PolicyVersions { name, versions }))
}
