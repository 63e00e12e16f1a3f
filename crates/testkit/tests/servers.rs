//! The servers and the network that other tests stand on do what they say.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "servers/client.rs"]
mod client;
#[path = "servers/network.rs"]
mod network;
#[path = "servers/owner.rs"]
mod owner;

use client::{Client, connect, is_refused, soon};
use testkit::servers::{PgBouncer, Postgres, Settings};

#[tokio::test]
async fn the_server_answers_an_ordinary_role_that_owns_its_database() {
    let postgres = Postgres::shared();
    let client = connect(&postgres.url()).await.unwrap();
    let role = "select rolname || ' ' || rolsuper || ' ' || rolreplication || ' ' || rolcreaterole
        from pg_roles where rolname = current_user";
    assert_eq!(client.one(role).await, "tollgate false false false");
    client.run("create schema belongs_to_us; create table mine (n int)").await.unwrap();
    let owner = postgres.psql("select tableowner from pg_tables where tablename = 'mine'");
    assert_eq!(owner, "tollgate");
    assert!(client.run("alter system set work_mem = '1GB'").await.is_err());

    let client = connect(&postgres.superuser_url()).await.unwrap();
    client.run("alter system reset work_mem").await.unwrap();
}

#[test]
fn a_process_has_one_shared_server_and_it_listens_nowhere_else() {
    let (one, other) = (Postgres::shared(), Postgres::shared());
    assert_eq!(one.port(), other.port());
    assert_eq!(one.psql("show listen_addresses"), "127.0.0.1");
    assert_eq!(one.psql("show unix_socket_directories"), one.folder().to_str().unwrap());
    assert_eq!(one.psql("show fsync"), "off");
}

#[test]
fn settings_reach_the_server() {
    let settings =
        Settings { fsync: true, lines: vec!["work_mem = '5MB'".into()], ..Settings::default() };
    let postgres = Postgres::start_with(settings);
    assert_eq!(postgres.psql("show fsync; show work_mem"), "on\n5MB");
}

#[test]
fn statements_that_fail_are_not_overlooked() {
    let postgres = Postgres::shared();
    let failed = std::panic::catch_unwind(|| postgres.psql("select 1; select no_such_column"));
    let message = failed.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("no_such_column"), "{message}");
}

#[tokio::test]
async fn pgbouncer_lends_one_session_to_all_by_turns() {
    let postgres = Postgres::shared();
    let bouncer = PgBouncer::start_with(postgres, &["default_pool_size = 1"]);
    let one = connect(&bouncer.url()).await.unwrap();
    let other = connect(&bouncer.url()).await.unwrap();
    let session = one.one("select pg_backend_pid()").await;
    assert_eq!(other.one("select pg_backend_pid()").await, session);

    one.run("begin").await.unwrap();
    let waiting = other.one("select 'mine'");
    tokio::pin!(waiting);
    assert!(soon(&mut waiting).await.is_none(), "a transaction has the session for itself");
    one.run("commit").await.unwrap();
    assert_eq!(waiting.await, "mine");
}

#[tokio::test]
async fn pgbouncer_stands_in_front_of_passwords_and_tls() {
    let settings = Settings { tls: true, password: true, ..Settings::default() };
    let postgres = Postgres::start_with(settings);
    let bouncer = PgBouncer::start(&postgres);
    let client = connect(&bouncer.url()).await.unwrap();
    let tls = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
    assert_eq!(client.one(tls).await, "t");
    assert!(connect(&with_wrong_password(&bouncer.url())).await.is_err());
}

#[test]
fn passwords_and_certificates_are_checked() {
    let settings = Settings { tls: true, password: true, ..Settings::default() };
    let postgres = Postgres::start_with(settings.clone());
    let stranger = Postgres::start_with(settings);
    let ask = |url: &str, options: &str| {
        let sql = "select current_user, ssl from pg_stat_ssl where pid = pg_backend_pid()";
        postgres.psql_through(&format!("{url}?{options}"), sql)
    };
    let verified = format!("sslmode=verify-full&sslrootcert={}", postgres.ca_file().display());
    assert_eq!(ask(&postgres.url(), &verified).unwrap(), "tollgate|t");
    assert_eq!(ask(&postgres.superuser_url(), &verified).unwrap(), "postgres|t");
    let localhost = postgres.url().replace("127.0.0.1", "localhost");
    assert_eq!(ask(&localhost, &verified).unwrap(), "tollgate|t");

    let said = ask(&with_wrong_password(&postgres.url()), &verified).unwrap_err();
    assert!(said.contains("password authentication failed"), "{said}");
    let strange = format!("sslmode=verify-full&sslrootcert={}", stranger.ca_file().display());
    let said = ask(&postgres.url(), &strange).unwrap_err();
    assert!(said.contains("certificate verify failed"), "{said}");
    let said = ask(&postgres.url(), "sslmode=disable").unwrap_err();
    let no_encryption = ["no encryption", "SSL off"].iter().any(|words| said.contains(words));
    assert!(no_encryption, "{said}");
    let stored = "select count(*) from pg_authid where rolpassword like 'SCRAM-SHA-256$%'";
    assert_eq!(postgres.psql(stored), "2");
}

fn with_wrong_password(url: &str) -> String {
    let wrong = url.replace(":secret-", ":wrong-");
    assert_ne!(wrong, url);
    wrong
}

#[tokio::test]
async fn a_paused_server_is_silent_and_goes_on_where_it_was() {
    let postgres = Postgres::start();
    let client = connect(&postgres.url()).await.unwrap();
    client.run("create table t as select 1 as n").await.unwrap();
    postgres.pause();
    let waiting = client.one("select n from t");
    tokio::pin!(waiting);
    assert!(soon(&mut waiting).await.is_none());
    let url = postgres.url();
    let new = connect(&url);
    tokio::pin!(new);
    assert!(soon(&mut new).await.is_none(), "the kernel accepts, the server does not");
    postgres.resume();
    assert_eq!(waiting.await, "1");
    assert_eq!(new.await.unwrap().one("select n from t").await, "1");
}

#[tokio::test]
async fn a_killed_server_keeps_what_was_committed_and_nothing_else() {
    let postgres = Postgres::start();
    let client = filled(&postgres).await;
    postgres.kill();
    assert!(client.run("commit").await.is_err());
    assert!(is_refused(&connect(&postgres.url()).await.unwrap_err()));
    postgres.start_again();
    assert_eq!(postgres.psql("select n from t"), "1");
    assert!(postgres.log().contains("database system was not properly shut down"));
}

#[tokio::test]
async fn a_stopped_server_ends_its_sessions_and_comes_back_on_its_port() {
    let postgres = Postgres::start();
    let client = filled(&postgres).await;
    let url = postgres.url();
    postgres.stop();
    assert!(client.run("commit").await.is_err());
    assert!(is_refused(&connect(&url).await.unwrap_err()));
    postgres.start_again();
    assert_eq!(connect(&url).await.unwrap().one("select n from t").await, "1");
    assert!(!postgres.log().contains("not properly shut down"));

    let client = connect(&url).await.unwrap();
    postgres.restart();
    assert!(client.run("select 1").await.is_err());
    assert_eq!(connect(&url).await.unwrap().one("select n from t").await, "1");
}

#[tokio::test]
async fn a_paused_server_can_be_killed_or_stopped() {
    let postgres = Postgres::start();
    let _client = filled(&postgres).await;
    postgres.pause();
    postgres.kill();
    postgres.start_again();
    postgres.pause();
    postgres.stop();
    postgres.start_again();
    assert_eq!(postgres.psql("select n from t"), "1");
}

/// With one row committed in `t`, and a second not yet.
async fn filled(postgres: &Postgres) -> Client {
    let client = connect(&postgres.url()).await.unwrap();
    client.run("create table t as select 1 as n").await.unwrap();
    client.run("begin; insert into t values (2)").await.unwrap();
    client
}
