//! Getting to PostgreSQL: schema, roles, TLS, passwords, and settings in the URL.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use testkit::random;
use testkit::servers::{Postgres, Proxy, Settings};
use tollgate::{Error, Policy, Tollgate};

const POLICY: &str = r#"limits = [{ name = "user", max = 3, per = "1h", by = ["user"] }]"#;

fn schema() -> String {
    random::name("s").replace('-', "_")
}

async fn refused(url: &str) -> String {
    match Tollgate::open(url).await {
        Err(error) => error.to_string(),
        Ok(_) => panic!("the store opened"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_instances_that_start_together_make_one_schema() {
    // Ten at once on two cores: the deadline is not what this is about.
    let url = format!("{}?schema={}&deadline=10s", Postgres::shared().url(), schema());
    let mut starting = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let url = url.clone();
        starting.spawn(async move {
            let gate = Tollgate::open(&url).await.unwrap();
            gate.apply(&Policy::from_toml("p", POLICY).unwrap(), "start").await.unwrap();
            let answer = gate.check("p", &[("user", "ada")], 1).await.unwrap();
            (answer.allowed(), answer.receipt)
        });
    }
    let answers = starting.join_all().await;
    assert_eq!(answers.iter().filter(|(allowed, _)| *allowed).count(), 3);
    // One secret for all: each takes back what another gave.
    let gate = Tollgate::open(&url).await.unwrap();
    for receipt in answers.into_iter().filter_map(|(_, receipt)| receipt) {
        assert_eq!(gate.refund(&receipt).await.unwrap(), tollgate::Refunded::Done);
    }
    assert_eq!(gate.policy_versions("p").await.unwrap().len(), 1, "nobody changed anything");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_schema_that_would_break_is_refused_and_another_newer_one_is_used() {
    let postgres = Postgres::shared();
    let schema = schema();
    let url = format!("{}?schema={schema}", postgres.url());
    drop(Tollgate::open(&url).await.unwrap());
    let newer = |version: i32, breaking: bool| {
        format!(
            "insert into {schema}.migration (version, name, breaking) values ({version}, 'later', {breaking})"
        )
    };
    postgres.psql(&newer(900, false));
    drop(Tollgate::open(&url).await.unwrap());
    postgres.psql(&newer(901, true));
    let error = refused(&url).await;
    assert!(error.contains("newer Tollgate (version 901)") && error.contains("update"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_may_only_use_the_tables_is_enough_once_they_are_there() {
    let postgres = Postgres::shared();
    let (schema, role) = (schema(), schema());
    let url = format!("{}?schema={schema}&deadline=10s", postgres.url());
    let gate = Tollgate::open(&url).await.unwrap();
    gate.apply(&Policy::from_toml("p", POLICY).unwrap(), "owner").await.unwrap();
    drop(gate);
    postgres.psql(&format!(
        "create role {role} login; grant usage on schema {schema} to {role}; \
         grant select, insert, update, delete on all tables in schema {schema} to {role};"
    ));
    let url = url.replace("://tollgate@", &format!("://{role}@"));
    let gate = Tollgate::open(&url).await.unwrap();
    for _ in 0..3 {
        assert!(gate.check("p", &[("user", "ada")], 1).await.unwrap().allowed());
    }
    assert!(!gate.check("p", &[("user", "ada")], 1).await.unwrap().allowed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_in_another_encoding_is_as_good() {
    let postgres = Postgres::shared();
    let name = schema();
    postgres.psql(&format!(
        "create database {name} encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' \
         template template0 owner tollgate"
    ));
    let url = postgres.url();
    let (server, _) = url.rsplit_once('/').unwrap();
    let gate = Tollgate::open(&format!("{server}/{name}")).await.unwrap();
    gate.apply(&Policy::from_toml("p", POLICY).unwrap(), "test").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schemas_are_worlds_of_their_own() {
    let url = Postgres::shared().url();
    let mut receipts = Vec::new();
    for _ in 0..2 {
        let gate = Tollgate::open(&format!("{url}?schema={}", schema())).await.unwrap();
        gate.apply(&Policy::from_toml("p", POLICY).unwrap(), "test").await.unwrap();
        let answer = gate.check("p", &[("user", "ada")], 1).await.unwrap();
        assert_eq!(answer.decision.limits[0].standing.used, 1);
        receipts.push((gate, answer.receipt.unwrap()));
    }
    let [(one, _), (_, of_other)] = &receipts[..] else { panic!("there are two") };
    assert!(matches!(one.refund(of_other).await, Err(Error::BadReceipt)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ordinary_role_needs_only_a_schema_that_is_its_own() {
    let postgres = Postgres::start();
    postgres.psql(
        "create role limits login; create schema limits authorization limits; \
         revoke create on database tollgate from public",
    );
    let url = postgres.url().replace("tollgate@", "limits@");
    let gate = Tollgate::open(&format!("{url}?schema=limits")).await.unwrap();
    gate.apply(&Policy::from_toml("p", POLICY).unwrap(), "test").await.unwrap();
    assert!(gate.check("p", &[("user", "ada")], 1).await.unwrap().allowed());
    let error = refused(&format!("{url}?schema=elsewhere")).await;
    assert!(error.contains("permission denied"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_and_a_certificate_are_checked() {
    let settings = Settings { tls: true, password: true, ..Settings::default() };
    let postgres = Postgres::start_with(settings);
    let (url, ca) = (postgres.url(), postgres.ca_file());
    let verified = format!("{url}?sslmode=verify-full&sslrootcert={}", ca.display());
    let gate = Tollgate::open(&verified).await.unwrap();
    gate.apply(&Policy::from_toml("p", POLICY).unwrap(), "test").await.unwrap();
    assert!(gate.check("p", &[("user", "ada")], 1).await.unwrap().allowed());
    let tls = postgres.psql(
        "select bool_and(ssl) from pg_stat_ssl join pg_stat_activity using (pid) \
         where usename = 'tollgate'",
    );
    assert_eq!(tls, "t");
    // As libpq does, `require` encrypts and asks nobody who it is.
    drop(Tollgate::open(&format!("{url}?sslmode=require")).await.unwrap());
    // The authorities of the public know nothing of ours.
    let error = refused(&format!("{url}?sslmode=verify-full")).await;
    assert!(error.contains("invalid peer certificate"), "{error}");
    let error = refused(&format!("{url}?sslmode=disable")).await;
    assert!(error.contains("no pg_hba.conf entry"), "{error}");
    let (user, _) = url.split_once("://").unwrap().1.split_once(':').unwrap();
    let wrong =
        url.replacen(&url[url.find(user).unwrap()..url.rfind('@').unwrap()], "tollgate:not-it", 1);
    let error = refused(&format!("{wrong}?sslmode=require")).await;
    assert!(error.contains("password authentication failed"), "{error}");
    assert!(!error.contains("not-it"), "a password is nobody's business: {error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_for_another_host_is_refused() {
    let postgres = Postgres::start_with(Settings { tls: true, ..Settings::default() });
    let proxy = Proxy::start(postgres.port());
    let ca = postgres.ca_file();
    let url = proxy.through(&postgres.url());
    let verify = format!("sslmode=verify-full&sslrootcert={}", ca.display());
    drop(Tollgate::open(&format!("{url}?{verify}")).await.unwrap());
    let elsewhere = url.replace("@127.0.0.1", "@127.0.0.2");
    let error = refused(&format!("{elsewhere}?{verify}&hostaddr=127.0.0.1")).await;
    assert!(error.contains("certificate"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_url_that_cannot_be_used_says_why_and_shows_no_password() {
    for (query, why) in [
        ("schema=Limits", "schema must be"),
        ("schema=pg_mine", "schema must be"),
        ("schema=a%22b", "schema must be"),
        ("lanes=0", "lanes must be from 1 to 64"),
        ("batch=many", "batch must be from 1"),
        ("queue=-1", "queue must be from 1"),
        ("deadline=5", "deadline must be from 10ms to 60s"),
        ("deadline=1ms", "deadline must be from 10ms to 60s"),
        ("shield=maybe", "shield must be on or off"),
        ("sslrootcert=/nowhere/ca.pem", "/nowhere/ca.pem"),
        ("sslrootcert=/nowhere/ca.pem&sslmode=disable", "contradict"),
        ("lane=4", "lane"),
        ("schema=%zz", "hexadecimal"),
    ] {
        let error = refused(&format!("postgres://ada:s3cret@127.0.0.1:1/db?{query}")).await;
        assert!(error.contains(why), "{query}: {error}");
        assert!(!error.contains("s3cret"), "{query}: {error}");
    }
}
