//! Single values in requests, and the URLs of stores.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tollgate::core::MAX_PER;
use tollgate::core::schedule::Hours;
use tollgate::{parse_duration, shown_url};
use tollgate_server::fuzzing;
use tollgate_store_postgres::{BadUrl, Settings};

pub fn values(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(span) = parse_duration(text) {
        assert!(span <= MAX_PER);
        assert_eq!(parse_duration(&format!("{}us", span.as_micros())), Ok(span));
    }
    if let Some(since) = fuzzing::since(text) {
        assert_eq!(parse_duration(text), Ok(since));
    }
    if let Some(at) = fuzzing::instant(text) {
        assert_eq!(
            fuzzing::instant(&at.to_string()),
            Some(at),
            "a time that is another when shown"
        );
    }
    if let Some((at, id)) = fuzzing::slot_cursor(text) {
        let bytes = [&at.as_micros().to_be_bytes(), id.as_bytes()].concat();
        assert_eq!(URL_SAFE_NO_PAD.encode(bytes), text, "a cursor that no page gave");
    }
    let _ = Hours::parse(text);
}

/// The first line is a password, the second what stands around it.
pub fn store_url(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let _ = (shown_url(text), Settings::parse(text));
    let Some((password, rest)) = text.split_once('\n') else { return };
    let is_secret = password.chars().count() >= 8 && !password.contains(['@', '&', ' ']);
    // What stands around it may say the same, and is shown.
    let around = [
        "postgres://user:@host/db?password=".to_owned(),
        format!("postgres://user:@{rest}"),
        format!("postgres://user@{rest}"),
        format!("postgres://user@host/db?{rest}&password="),
    ];
    if !is_secret || around.iter().any(|text| text.contains(password)) {
        return;
    }
    for url in [
        format!("postgres://user:{password}@{rest}"),
        format!("postgres://user@host/db?{rest}&password={password}"),
    ] {
        let shown = shown_url(&url);
        assert!(!shown.contains(password), "{shown} shows the password");
        match Settings::parse(&url) {
            Err(BadUrl(why)) => assert!(!why.contains(password), "{why} shows the password"),
            Ok(settings) => {
                let shown = format!("{settings:?}");
                assert!(!shown.contains(password), "{shown} shows the password");
            }
        }
    }
}
