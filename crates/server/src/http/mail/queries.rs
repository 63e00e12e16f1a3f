//! Query strings of the mail relay's calls.

use serde::Deserialize;
use utoipa::IntoParams;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TenantQuery {
    /// May be left out with that tenant's token.
    pub(super) tenant_id: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// May be left out with that tenant's token.
    pub(super) tenant_id: Option<String>,
    /// `pending`, `deferred`, `suspended`, `sent` or `error`.
    pub(super) status: Option<String>,
    pub(super) account_id: Option<String>,
    pub(super) batch_code: Option<String>,
    pub(super) id: Option<String>,
    /// 1 to 1000; 100 if not said.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    pub(super) limit: Option<String>,
    /// `next_cursor` of the page before.
    pub(super) cursor: Option<String>,
}
