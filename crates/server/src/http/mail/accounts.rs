//! SMTP accounts. A password goes in and never comes out.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use tollgate_mail::{Account, AccountKey, LimitBehavior, LimitUnit, NewAccount, Secret, Tls};
use utoipa::ToSchema;

use super::queries::TenantQuery;
use super::reach::Reach;
use super::whole::Whole;
use super::{OK, Ok as Done, future_ts, past_ts};
use crate::body::{self, parse};
use crate::http::{query, schema};
use crate::problem::Problem;
use crate::state::App;

/// Where mail goes, and how fast.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AccountRequest {
    /// Unique within its tenant.
    id: String,
    /// May be left out with that tenant's token.
    tenant_id: Option<String>,
    host: String,
    port: u16,
    user: Option<String>,
    /// The one it has if not said; empty: none.
    password: Option<String>,
    /// Who mail sent with an API key is from; the user, if not said.
    from_address: Option<String>,
    /// STARTTLS, or TLS from the first byte on port 465. Defaults to true.
    use_tls: Option<bool>,
    /// Overrules `use_tls` and what the port suggests.
    #[schema(value_type = Option<schema::MailTls>)]
    tls: Option<Tls>,
    /// Authority to trust for this server, in PEM, besides the public ones.
    root_cert: Option<String>,
    /// Lets the password travel unencrypted to another machine. Defaults to false.
    allow_plaintext_auth: Option<bool>,
    /// 0, null or absent: no such limit.
    limit_per_minute: Option<u64>,
    limit_per_hour: Option<u64>,
    limit_per_day: Option<u64>,
    /// Defaults to `defer`.
    #[schema(value_type = Option<schema::MailLimitBehavior>)]
    limit_behavior: Option<LimitBehavior>,
    /// Defaults to `messages`.
    #[schema(value_type = Option<schema::MailLimitUnit>)]
    limit_unit: Option<LimitUnit>,
    /// Percent of each limit that only priority 0 may use. Defaults to 0.
    #[schema(value_type = Option<u8>, maximum = 99)]
    priority0_share: Option<Whole<99>>,
    /// Messages that each instance sends at once; 1, the default, keeps their order within it.
    #[schema(minimum = 1, maximum = 100)]
    concurrency: Option<u16>,
}

impl AccountRequest {
    fn into_new(self, tenant_id: String) -> NewAccount {
        NewAccount {
            id: self.id,
            tenant_id,
            host: self.host,
            port: self.port,
            user: self.user,
            password: self.password.map(Secret::new),
            from_address: self.from_address,
            use_tls: self.use_tls.unwrap_or(true),
            tls: self.tls,
            root_cert: self.root_cert,
            allow_plaintext_auth: self.allow_plaintext_auth.unwrap_or(false),
            limit_per_minute: self.limit_per_minute,
            limit_per_hour: self.limit_per_hour,
            limit_per_day: self.limit_per_day,
            limit_behavior: self.limit_behavior.unwrap_or_default(),
            limit_unit: self.limit_unit.unwrap_or_default(),
            priority0_share: self.priority0_share.map_or(0, |Whole(given)| given),
            concurrency: self.concurrency.unwrap_or(1),
        }
    }
}

#[derive(Serialize, ToSchema)]
pub(crate) struct AccountList {
    accounts: Vec<AccountRow>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct AccountRow {
    id: String,
    tenant_id: String,
    host: String,
    port: u16,
    user: Option<String>,
    has_password: bool,
    from_address: Option<String>,
    use_tls: bool,
    #[schema(value_type = schema::MailTls)]
    tls: Tls,
    root_cert: Option<String>,
    allow_plaintext_auth: bool,
    /// Null: no such limit.
    limit_per_minute: Option<u64>,
    limit_per_hour: Option<u64>,
    limit_per_day: Option<u64>,
    #[schema(value_type = schema::MailLimitBehavior)]
    limit_behavior: LimitBehavior,
    #[schema(value_type = schema::MailLimitUnit)]
    limit_unit: LimitUnit,
    priority0_share: u8,
    concurrency: u16,
    /// Nothing is sent before this, because a limit is reached or its server asked for a pause.
    resume_ts: Option<i64>,
    /// Nothing but priority 0 is sent before this.
    resume_ordinary_ts: Option<i64>,
    created_ts: i64,
    updated_ts: i64,
}

impl AccountRow {
    fn of(account: Account) -> Self {
        Self {
            id: account.key.account_id,
            tenant_id: account.key.tenant_id,
            host: account.host,
            port: account.port,
            user: account.user,
            has_password: account.has_password,
            from_address: account.from_address,
            use_tls: account.use_tls,
            tls: account.tls,
            root_cert: account.root_cert,
            allow_plaintext_auth: account.allow_plaintext_auth,
            limit_per_minute: account.limit_per_minute,
            limit_per_hour: account.limit_per_hour,
            limit_per_day: account.limit_per_day,
            limit_behavior: account.limit_behavior,
            limit_unit: account.limit_unit,
            priority0_share: account.priority0_share,
            concurrency: account.concurrency,
            resume_ts: account.resume_at.map(future_ts),
            resume_ordinary_ts: account.resume_ordinary_at.map(future_ts),
            created_ts: past_ts(account.created_at),
            updated_ts: past_ts(account.updated_at),
        }
    }
}

/// Makes or replaces an account. What it changes is in force at the next send.
#[utoipa::path(post, path = "/account", tag = "mail",
    request_body = AccountRequest,
    responses((status = 200, body = Done), schema::BadInput, schema::NotFound, schema::StoreDown,
        schema::NoAccess, schema::TooLarge))]
pub(crate) async fn post(
    State(app): State<Arc<App>>,
    Extension(reach): Extension<Reach>,
    request: axum::extract::Request,
) -> Result<Json<Done>, Problem> {
    let bytes = body::read(request.into_body(), app.body_limits).await?;
    let mut request: AccountRequest = parse(&bytes)?;
    let tenant_id = reach.one_tenant(request.tenant_id.take())?;
    let (mail, new) = (app.mail.clone(), request.into_new(tenant_id));
    app.finish_mail(async move { mail.put_account(new).await }).await?;
    Ok(Json(OK))
}

/// The accounts of one tenant, or of all.
#[utoipa::path(get, path = "/accounts", tag = "mail",
    params(TenantQuery),
    responses((status = 200, body = AccountList), schema::BadInput, schema::NotFound,
        schema::StoreDown, schema::NoAccess))]
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(reach): Extension<Reach>,
    query: Result<Query<TenantQuery>, QueryRejection>,
) -> Result<Json<AccountList>, Problem> {
    let tenant_id = reach.tenant(query::read(query)?.tenant_id)?;
    let accounts = app.mail.accounts(tenant_id.as_deref()).await;
    let accounts = accounts.map_err(|error| app.mail_failed(error))?;
    Ok(Json(AccountList { accounts: accounts.into_iter().map(AccountRow::of).collect() }))
}

/// Deletes an account. Its unsent messages stand against it.
///
/// An admin need not name the tenant of an id that only one has.
#[utoipa::path(delete, path = "/account/{id}", tag = "mail",
    params(("id" = String, Path), TenantQuery),
    responses((status = 200, body = Done), schema::BadInput, schema::NotFound, schema::HasMail,
        schema::StoreDown, schema::NoAccess))]
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Extension(reach): Extension<Reach>,
    Path(id): Path<String>,
    query: Result<Query<TenantQuery>, QueryRejection>,
) -> Result<Json<Done>, Problem> {
    let tenant_id = match reach.tenant(query::read(query)?.tenant_id)? {
        Some(tenant_id) => tenant_id,
        None => only_owner(&app, &id).await?,
    };
    let (mail, key) = (app.mail.clone(), AccountKey::new(tenant_id, id));
    app.finish_mail(async move { mail.delete_account(&key).await }).await?;
    Ok(Json(OK))
}

async fn only_owner(app: &App, id: &str) -> Result<String, Problem> {
    let accounts = app.mail.accounts(None).await.map_err(|error| app.mail_failed(error))?;
    let mut owners =
        accounts.into_iter().map(|account| account.key).filter(|it| it.account_id == id);
    match (owners.next(), owners.next()) {
        (Some(only), None) => Ok(only.tenant_id),
        (None, _) => Err(Problem::not_found(format!("there is no account {id:?}"))),
        (Some(_), Some(_)) => {
            let detail = format!("tenant_id is required: several tenants have an account {id:?}");
            Err(Problem::bad_field("tenant_id", detail))
        }
    }
}
