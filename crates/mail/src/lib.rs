//! The mail relay: tenants, accounts, queue, dispatcher.
//!
//! An HTTP gateway in front of SMTP: each API key has a daily quota that refuses, each SMTP account
//! is paced by the minute, hour and day, and what does not fit now is deferred. All counting is
//! [`tollgate`]'s, through its public interface; storage of everything else is this crate's own.
//! What requests and answers look like on the wire is the server's; but for the delivery reports,
//! which are POSTed from here, and the rate limit headers of a send, which its retries repeat.

mod address;
mod catalogue;
mod chunks;
mod commands;
mod dispatcher;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod mail;
mod model;
mod nudges;
mod policies;
mod queue;
mod reporter;
mod secrets;
mod send;
mod settings;
mod smtp;
mod validate;

pub use dispatcher::Running;
pub use error::{Invalid, MailError, Refused, SendError};
pub use mail::Mail;
pub use model::{
    Account, AccountKey, Added, ApiKey, Attachment, Attempt, Content, Counts, LimitBehavior,
    LimitUnit, MessageQuery, MessageRow, NewAccount, NewApiKey, NewMessage, NewTenant, Rejected,
    RelayStatus, Selection, SendRequest, Sent, Status, Tenant, TenantSaved, Tls, Usage,
};
pub use settings::{KeySource, MailSettings, Secret};
