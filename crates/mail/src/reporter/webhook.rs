//! One POST of delivery reports: its body, its signature, and the request.

use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use serde_json::json;
use sha2::Sha256;

use super::unix_secs;
use crate::model::{Report, ReportBatch};
use crate::secrets;
use crate::settings::Secret;

const SIGNATURE_HEADER: &str = "X-Tollgate-Signature";

pub(super) struct Post {
    pub(super) url: String,
    pub(super) signature: String,
    pub(super) body: String,
    pub(super) timeout: Duration,
}

/// `{"reports": […]}`, oldest first.
pub(super) fn body(batch: &ReportBatch) -> String {
    let reports: Vec<_> =
        batch.reports.iter().map(|report| shown(&batch.tenant_id, report)).collect();
    json!({ "reports": reports }).to_string()
}

fn shown(tenant_id: &str, report: &Report) -> serde_json::Value {
    let at = unix_secs(report.at);
    let sent = report.status == "sent";
    json!({
        "id": report.message_id,
        "tenant_id": tenant_id,
        "account_id": report.account_id,
        "batch_code": report.batch_code,
        "status": report.status,
        "sent_ts": sent.then_some(at),
        "error_ts": (!sent).then_some(at),
        "attempts": report.attempts,
        "smtp_code": report.smtp_code,
        "error": report.error,
    })
}

/// `t=UNIX,v1=HEX`: whoever has the secret can tell that the body, at that time, is ours.
pub(super) fn signature(secret: &Secret, unix_secs: i64, body: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.reveal().as_bytes())
        .expect("a key of any length will do");
    mac.update(format!("{unix_secs}.").as_bytes());
    mac.update(body.as_bytes());
    format!("t={unix_secs},v1={}", secrets::hex(&mac.finalize().into_bytes()))
}

impl Post {
    /// Blocks. An error unless the answer is a 2xx; it never holds the URL, which may hold a
    /// password.
    pub(super) fn send(self) -> Result<(), String> {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(self.timeout))
            .http_status_as_error(false)
            .max_redirects(0)
            .build();
        let agent: ureq::Agent = config.into();
        let answer = agent
            .post(&self.url)
            .header("Content-Type", "application/json")
            .header(SIGNATURE_HEADER, &self.signature)
            .send(self.body.as_str())
            .map_err(|error| match error {
                ureq::Error::BadUri(_) | ureq::Error::Http(_) => {
                    "the report_url cannot be used: set another".to_owned()
                }
                other => other.to_string(),
            })?;
        let status = answer.status();
        if status.is_success() { Ok(()) } else { Err(format!("the answer was {status}")) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Post, signature};
    use crate::settings::Secret;

    #[test]
    fn why_a_report_was_not_taken_does_not_tell_the_url() {
        for place in ["host:notaport/", "host:99999/", "", "[::1/", "host name/", "127.0.0.1:9/"] {
            let post = Post {
                url: format!("http://user:sesame@{place}"),
                signature: "t=1,v1=00".into(),
                body: "{}".into(),
                timeout: Duration::from_secs(5),
            };
            let why = post.send().expect_err("nobody is there");
            assert!(!why.contains("sesame"), "{why}");
        }
    }

    #[test]
    fn the_signature_is_an_hmac_of_time_and_body() {
        // openssl: printf '1700000000.{"reports":[]}' | openssl dgst -sha256 -hmac 'a secret of tenants'
        let signed =
            signature(&Secret::new("a secret of tenants"), 1_700_000_000, r#"{"reports":[]}"#);
        assert_eq!(
            signed,
            "t=1700000000,v1=2aead29b07c52fcb8384af706bc3670d0e44c032bc3d8d60cf9167acc731a368"
        );
    }
}
