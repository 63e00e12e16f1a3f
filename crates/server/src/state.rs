//! What every request handler shares.

use tollgate::Tollgate;
use tollgate_mail::Mail;

use crate::auth::Access;
use crate::body::{BodyLimits, LargeBodies};
use crate::forward_auth::ForwardAuth;
use crate::http::Readiness;
use crate::metrics::Metrics;

#[derive(Debug)]
pub(crate) struct App {
    pub(crate) gate: Tollgate,
    pub(crate) mail: Mail,
    pub(crate) access: Access,
    pub(crate) forward_auth: ForwardAuth,
    pub(crate) metrics: Metrics,
    pub(crate) body_limits: BodyLimits,
    /// Of calls that carry many events.
    pub(crate) batch_body_limits: BodyLimits,
    /// Of calls that bring mail.
    pub(crate) mail_body_limits: BodyLimits,
    pub(crate) large_bodies: LargeBodies,
    pub(crate) readiness: Readiness,
}
