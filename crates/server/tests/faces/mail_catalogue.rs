//! Tenants, accounts and keys: made, shown, changed, deleted; secrets in, never out.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::support::mail::{CLOSED_PORT, FAR_TS, account_body, message_body, only, with};
use crate::support::server::files;
use crate::support::{Server, Setup, members};

#[test]
fn mail_account_of_the_seed_is_stored_and_shown_without_its_password() {
    let setup = Setup::sqlite();
    let server = setup.start();
    server.post("/tenant", &json!({ "id": "acme", "name": "Acme" })).ok();
    let seed = json!({ "id": "primary-smtp", "tenant_id": "acme", "host": "smtp.example.com",
        "port": 587, "user": "sender@example.com", "password": "a-secret-password",
        "use_tls": true, "limit_per_minute": 10, "limit_per_hour": 100, "limit_per_day": 1000 });
    assert_eq!(server.post("/account", &seed).ok(), json!({ "ok": true }));
    let listed = server.get("/accounts?tenant_id=acme");
    assert!(!listed.body.contains("a-secret-password"));
    let account = &listed.ok()["accounts"][0];
    let expected = json!({ "id": "primary-smtp", "tenant_id": "acme", "host": "smtp.example.com",
        "port": 587, "user": "sender@example.com", "has_password": true, "use_tls": true,
        "tls": "starttls", "limit_per_minute": 10, "limit_per_hour": 100, "limit_per_day": 1000,
        "limit_behavior": "defer", "limit_unit": "messages", "priority0_share": 0,
        "concurrency": 1, "resume_ts": null });
    let names = members(&expected);
    assert_eq!(only(account, &names), expected);
    assert!(account.get("password").is_none());
    // Without a password it keeps the one it has; an empty one takes it away.
    let mut again = seed;
    again.as_object_mut().unwrap().remove("password");
    let has = |body: &Value| {
        server.post("/account", body).ok();
        server.get("/accounts?tenant_id=acme").ok()["accounts"][0]["has_password"] == true
    };
    assert!(has(&again));
    assert!(!has(&with(again, json!({ "password": "" }))));
    // Nor does it stand in a file.
    server.terminate();
    for name in files(setup.home.path()) {
        let bytes = std::fs::read(setup.home.path().join(&name)).unwrap();
        let found = bytes.windows(17).any(|window| window == b"a-secret-password");
        assert!(!found, "{name}");
    }
}

#[test]
fn mail_limits_of_zero_null_or_nothing_are_off() {
    let server = Server::memory();
    server.mail_tenant("acme", CLOSED_PORT);
    server.mail_account(
        "acme",
        CLOSED_PORT,
        json!({ "limit_per_minute": 0, "limit_per_hour": null }),
    );
    let account = &server.get("/accounts?tenant_id=acme").ok()["accounts"][0];
    for name in ["limit_per_minute", "limit_per_hour", "limit_per_day"] {
        assert_eq!(account[name], Value::Null, "{name}");
    }
}

#[test]
fn mail_key_file_is_made_with_the_first_password_and_for_its_owner_only() {
    let setup = Setup::sqlite();
    let server = setup.start();
    server.mail_tenant("acme", CLOSED_PORT);
    let before = files(setup.home.path());
    assert!(!before.iter().any(|name| name.contains("key")), "{before:?}");
    server.mail_account("acme", CLOSED_PORT, json!({ "user": "ada", "password": "sesame" }));
    let after = files(setup.home.path());
    let made: Vec<_> = after.iter().filter(|name| name.contains("key")).collect();
    assert_eq!(made.len(), 1, "{after:?}");
    let mode = std::fs::metadata(setup.home.path().join(made[0])).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    server.terminate();
    // With another key, the server says so at once.
    let other = "another key that is long enough";
    let ended = Setup::memory()
        .with_args(&["serve", "--listen", "127.0.0.1:0", "--store", &setup.store_url()])
        .env("TOLLGATE_MAIL_KEY", other)
        .start_in_vain();
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(ended.err.contains("TOLLGATE_MAIL_KEY") && !ended.err.contains(other), "{ended:?}");
    setup.start().get("/accounts?tenant_id=acme").ok();
}

#[test]
fn mail_tenants_and_accounts_are_deleted_unless_mail_waits() {
    let server = Server::memory();
    server.mail_tenant("acme", CLOSED_PORT);
    let tenants = server.get("/tenants").ok();
    let row = only(&tenants["tenants"][0], &["id", "name", "report_url", "suspended", "has_token"]);
    let expected = json!({ "id": "acme", "name": "Acme", "report_url": null, "suspended": false,
        "has_token": false });
    assert_eq!(row, expected);
    server.queue(&[with(message_body("acme", "m"), json!({ "deferred_ts": FAR_TS }))]);
    let why = server.delete("/account/main?tenant_id=acme").problem(409);
    assert!(why["detail"].as_str().unwrap().contains("1 unsent"), "{why}");
    server.delete("/tenant/acme").problem(409);
    server.post("/commands/delete-messages", &json!({ "tenant_id": "acme", "ids": ["m"] })).ok();
    assert_eq!(server.delete("/account/main?tenant_id=acme").ok(), json!({ "ok": true }));
    server.delete("/account/main?tenant_id=acme").problem(404);
    assert_eq!(server.delete("/tenant/acme").ok(), json!({ "ok": true }));
    server.delete("/tenant/acme").problem(404);
    assert_eq!(server.get("/tenants").ok()["tenants"], json!([]));
}

#[test]
fn mail_account_of_an_id_that_one_tenant_has_is_deleted_without_naming_it() {
    let server = Server::memory();
    for tenant in ["acme", "globex"] {
        server.post("/tenant", &json!({ "id": tenant, "name": tenant })).ok();
        let body = account_body(tenant, "shared", CLOSED_PORT);
        server.post("/account", &body).ok();
    }
    server.delete("/account/shared").fault(400, "tenant_id");
    server.delete("/account/shared?tenant_id=acme").ok();
    server.delete("/account/shared").ok();
    server.delete("/account/shared").problem(404);
}

#[test]
fn mail_report_secret_is_made_once_and_shown_once() {
    let server = Server::memory();
    let body = json!({ "id": "acme", "name": "Acme", "report_url": "https://example.org/hook" });
    let first = server.post("/tenant", &body).ok();
    assert_eq!((&first["ok"], &first["created"]), (&json!(true), &json!(true)));
    assert!(first["report_secret"].as_str().unwrap().len() > 20);
    let second = server.post("/tenant", &body).ok();
    assert_eq!(members(&second), ["created", "ok"]);
    assert_eq!(second["created"], false);
}

#[test]
fn mail_api_keys_are_shown_once_limited_to_15_and_switched_on_and_off() {
    let server = Server::memory();
    server.mail_tenant("acme", CLOSED_PORT);
    let (id, secret) = server.api_key("acme", json!({}));
    assert!(secret.starts_with("tgk_") && secret.len() > 40);
    let listed = server.get("/keys?tenant_id=acme");
    assert!(!listed.body.contains(&secret));
    let key = &listed.ok()["keys"][0];
    assert_eq!(
        (&key["daily_limit"], &key["timezone"], &key["enabled"]),
        (&json!(15), &json!("UTC"), &json!(true))
    );
    let change = |body: Value| server.put(&format!("/keys/{id}"), &body);
    assert_eq!(change(json!({ "enabled": false })).ok()["enabled"], false);
    assert_eq!(change(json!({ "enabled": true, "daily_limit": 7 })).ok()["daily_limit"], 7);
    change(json!({})).problem(400);
    change(json!({ "limit": 7 })).fault(400, "limit");
    server.put("/keys/nope", &json!({ "enabled": true })).problem(404);
    assert_eq!(server.delete(&format!("/keys/{id}")).ok(), json!({ "ok": true }));
    server.delete(&format!("/keys/{id}")).problem(404);
    assert_eq!(server.get("/keys").ok()["keys"], json!([]));
}

#[test]
fn mail_calls_name_the_field_at_fault() {
    let server = Server::memory();
    server.mail_tenant("acme", CLOSED_PORT);
    let account = |more: Value| with(account_body("acme", "a", CLOSED_PORT), more);
    let key = |more: Value| with(json!({ "tenant_id": "acme", "account_id": "main" }), more);
    for (path, body, field) in [
        ("/tenant", json!({ "name": "x" }), "id"),
        ("/tenant", json!({ "id": "a b" }), "id"),
        ("/tenant", json!({ "id": "a", "report_url": "ftp://x" }), "report_url"),
        ("/tenant", json!({ "id": "a", "colour": 1 }), "colour"),
        ("/account", account(json!({ "id": "" })), "id"),
        ("/account", account(json!({ "port": 0 })), "port"),
        ("/account", account(json!({ "port": 70000 })), "port"),
        ("/account", account(json!({ "host": "a\r\nb" })), "host"),
        ("/account", account(json!({ "limit_per_minute": -1 })), "limit_per_minute"),
        ("/account", account(json!({ "limit_behavior": "drop" })), "limit_behavior"),
        ("/account", account(json!({ "priority0_share": 100 })), "priority0_share"),
        ("/account", account(json!({ "priority0_share": 0.5 })), "priority0_share"),
        ("/account", account(json!({ "limit_per_week": 5 })), "limit_per_week"),
        ("/account", json!({ "id": "a", "host": "h", "port": 25 }), "tenant_id"),
        ("/keys", key(json!({ "timezone": "Mars/Base" })), "timezone"),
        ("/keys", key(json!({ "daily_limit": -5 })), "daily_limit"),
        ("/keys", json!({ "tenant_id": "acme" }), "account_id"),
        ("/commands/cleanup-messages", json!({ "older_than": "soon" }), "older_than"),
        ("/commands/suspend", json!({ "batch": "x" }), "batch"),
        ("/commands/suspend", json!({}), "tenant_id"),
        ("/commands/delete-messages", json!({ "tenant_id": "acme" }), "ids"),
    ] {
        server.post(path, &body).fault(400, field);
    }
    for (path, field) in [
        ("/messages", "tenant_id"),
        ("/messages?tenant_id=acme&status=lost", "status"),
        ("/messages?tenant_id=acme&limit=0", "limit"),
        ("/messages?tenant_id=acme&limit=x", "limit"),
        ("/messages?tenant_id=acme&cursor=x", "cursor"),
        ("/messages?tenant_id=acme&order=x", "order"),
    ] {
        server.get(path).fault(400, field);
    }
    for path in ["/accounts?tenant_id=nope", "/messages?tenant_id=nope", "/status?tenant_id=nope"] {
        server.get(path).problem(404);
    }
    server.post("/account", &account_body("nope", "a", 25)).problem(404);
    server.post("/keys", &key(json!({ "account_id": "nope" }))).problem(404);
    server.post("/commands/run-now", &json!({ "tenant_id": "nope" })).problem(404);
}
