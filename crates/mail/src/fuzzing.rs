//! What becomes of a message, opened for the fuzz targets in `fuzz/`. Not part of the interface:
//! without the feature `fuzzing` it is not there.

use tollgate::Instant;

use crate::error::Invalid;
use crate::model::{Content, NewMessage};
use crate::settings::MailSettings;
use crate::smtp::{Identity, Outgoing};
use crate::validate;

/// A message that the relay takes, as the queue keeps it.
pub fn stored(message: NewMessage) -> Result<Vec<u8>, Invalid> {
    validate::message(message, &MailSettings::default()).map(|record| record.content)
}

/// What is said to an SMTP server after `DATA`, and to how many recipients it goes.
pub fn said(content: &Content) -> Result<(String, usize), String> {
    let at = Instant::from_secs(1_790_000_000);
    let identity = Identity { tenant_id: "t", id: "m", created_at: at };
    let outgoing = Outgoing::new(content, identity, at)?;
    Ok((outgoing.data, outgoing.recipients.len()))
}
