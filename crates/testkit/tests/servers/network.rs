//! The proxy is as bad a network as it is told to be, and no worse.

use std::time::{Duration, Instant};

use testkit::random;
use testkit::servers::{Moment, Postgres, Proxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::client::{Client, at_last, connect, is_refused, soon};

/// For what must come: two cores that compile at the same time are slow.
const PATIENCE: Duration = Duration::from_secs(20);

fn proxied() -> (Proxy, String) {
    let postgres = Postgres::shared();
    let proxy = Proxy::start(postgres.port());
    let url = proxy.through(&postgres.url());
    (proxy, url)
}

#[tokio::test]
async fn a_proxy_passes_everything_both_ways() {
    let (_proxy, url) = proxied();
    let client = connect(&url).await.unwrap();
    let long = "x".repeat(3_000_000);
    assert_eq!(client.one(&format!("select '{long}'")).await, long);
}

#[tokio::test]
async fn each_side_closes_for_itself() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap().port());
    let mut client = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    let (mut heard, mut answer) = (String::new(), String::new());
    client.write_all(b"that is all").await.unwrap();
    client.shutdown().await.unwrap();
    at_last(server.read_to_string(&mut heard)).await.unwrap();
    server.write_all(b"heard: ").await.unwrap();
    server.write_all(heard.as_bytes()).await.unwrap();
    drop(server);
    at_last(client.read_to_string(&mut answer)).await.unwrap();
    assert_eq!(answer, "heard: that is all");
}

#[tokio::test]
async fn a_stall_hides_that_the_server_is_down() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap().port());
    drop(listener);
    proxy.stall();
    let mut client = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
    let mut answer = Vec::new();
    let closed = client.read_to_end(&mut answer);
    tokio::pin!(closed);
    assert!(soon(&mut closed).await.is_none());
    proxy.pass();
    assert_eq!(closed.await.unwrap(), 0);
}

#[tokio::test]
async fn a_cut_closes_what_is_open_and_refuses_what_is_new() {
    let (proxy, url) = proxied();
    let client = connect(&url).await.unwrap();
    let session = client.one("select pg_backend_pid()").await;
    proxy.cut();
    assert!(client.run("select 1").await.is_err());
    let error = connect(&url).await.unwrap_err();
    assert!(is_refused(&error), "{error:?}");
    until_gone(&session).await;

    proxy.pass();
    assert!(client.run("select 1").await.is_err(), "what was cut stays cut");
    assert_eq!(connect(&url).await.unwrap().one("select 1").await, "1");
}

#[tokio::test]
async fn a_stall_holds_back_questions_and_answers_until_it_ends() {
    let (proxy, url) = proxied();
    let client = connect(&url).await.unwrap();
    // The answer: the server waits for a lock that is free only after the stall has begun.
    let postgres = Postgres::shared();
    let gate = Gate::close(postgres).await;
    let answer = gate.pass_sql();
    let answered = client.one(&answer);
    tokio::pin!(answered);
    let limit = Instant::now() + PATIENCE;
    while !gate.is_waited_for() {
        assert!(Instant::now() < limit, "the server was not asked");
        assert!(soon(&mut answered).await.is_none());
    }
    proxy.stall();
    gate.open().await;
    assert!(soon(&mut answered).await.is_none());
    // The question, and a connection that is new.
    let table = random::name("stalled").replace('-', "_");
    let create = format!("create table {table} ()");
    let asked = client.run(&create);
    tokio::pin!(asked);
    assert!(soon(&mut asked).await.is_none());
    let exists = format!("select to_regclass('{table}') is not null");
    assert_eq!(postgres.psql(&exists), "f");
    let new = connect(&url);
    tokio::pin!(new);
    assert!(soon(&mut new).await.is_none(), "accepted, and nothing more");

    proxy.pass();
    answered.await;
    asked.await.unwrap();
    assert_eq!(postgres.psql(&exists), "t");
    assert_eq!(new.await.unwrap().one("select 1").await, "1");
}

#[tokio::test]
async fn latency_delays_a_round_trip_and_leaves_the_width_of_the_line() {
    let (proxy, url) = proxied();
    let client = connect(&url).await.unwrap();
    let one_way = Duration::from_millis(100);
    proxy.latency(one_way);
    let began = Instant::now();
    client.run("select 1").await.unwrap();
    let round_trip = began.elapsed();
    assert!(round_trip >= 2 * one_way, "{round_trip:?}");

    let began = Instant::now();
    client.one(&format!("select '{}'", "x".repeat(1_000_000))).await;
    let wide = began.elapsed();
    // Each piece for itself would take 6 seconds.
    assert!(wide < 50 * one_way, "60 pieces each way, in {wide:?}");

    proxy.latency(Duration::ZERO);
    // A delay that is still there would be in every round trip.
    let limit = Instant::now() + PATIENCE;
    loop {
        let began = Instant::now();
        client.run("select 1").await.unwrap();
        if began.elapsed() < 2 * one_way {
            break;
        }
        assert!(Instant::now() < limit, "no round trip is quick again");
    }
}

#[tokio::test]
async fn a_commit_that_is_cut_at_its_answer_has_happened() {
    let (proxy, url) = proxied();
    let (client, table) = uncommitted(&url).await;
    proxy.cut_at(b"commit\0", Moment::AtTheAnswer);
    assert!(client.run("commit").await.unwrap_err().is_closed());
    assert_eq!(rows(&table), "1");
    assert!(!proxy.is_armed());
}

#[tokio::test]
async fn a_commit_that_is_cut_once_forwarded_happens_though_nobody_waits_for_it() {
    let (proxy, url) = proxied();
    let postgres = Postgres::shared();
    let client = connect(&url).await.unwrap();
    let table = new_table(&client).await;
    // What the server must do to commit waits until we have looked.
    let gate = Gate::close(postgres).await;
    postgres.psql(&format!(
        "create function {table}_wait() returns trigger language plpgsql as
            $$ begin perform ({pass}); return null; end $$;
        create constraint trigger wait after insert on {table}
            deferrable initially deferred for each row execute function {table}_wait()",
        pass = gate.pass_sql()
    ));
    client.run(&format!("begin; insert into {table} values (1)")).await.unwrap();
    proxy.cut_at(b"commit\0", Moment::OnceForwarded);
    assert!(client.run("commit").await.unwrap_err().is_closed());
    assert_eq!(rows(&table), "0", "too early");
    gate.open().await;
    let limit = Instant::now() + PATIENCE;
    while rows(&table) != "1" {
        assert!(Instant::now() < limit, "it never happened");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_commit_that_is_cut_before_the_server_never_happens() {
    let (proxy, url) = proxied();
    let (client, table) = uncommitted(&url).await;
    let session = client.one("select pg_backend_pid()").await;
    proxy.cut_at(b"commit\0", Moment::BeforeTheServer);
    assert!(client.run("commit").await.unwrap_err().is_closed());
    until_gone(&session).await;
    assert_eq!(rows(&table), "0");
}

#[tokio::test]
async fn only_one_connection_is_cut_and_only_once() {
    let (proxy, url) = proxied();
    let (bystander, table) = uncommitted(&url).await;
    let (victim, _) = uncommitted(&url).await;
    proxy.cut_at(b"commit\0", Moment::AtTheAnswer);
    bystander.run("select 'commit to nothing'").await.unwrap();
    assert!(proxy.is_armed());
    assert!(victim.run("commit").await.is_err());
    bystander.run("commit").await.unwrap();
    assert_eq!(rows(&table), "1");
    let (next, table) = uncommitted(&url).await;
    next.run("COMMIT").await.unwrap();
    assert_eq!(rows(&table), "1");
}

/// A new table, and a row in it that waits for its commit.
async fn uncommitted(url: &str) -> (Client, String) {
    let client = connect(url).await.unwrap();
    let table = new_table(&client).await;
    client.run(&format!("begin; insert into {table} values (1)")).await.unwrap();
    (client, table)
}

async fn new_table(client: &Client) -> String {
    let table = random::name("t").replace('-', "_");
    client.run(&format!("create table {table} (n int)")).await.unwrap();
    table
}

fn rows(table: &str) -> String {
    Postgres::shared().psql(&format!("select count(*) from {table}"))
}

async fn until_gone(session: &str) {
    let limit = Instant::now() + PATIENCE;
    let sql = format!("select count(*) from pg_stat_activity where pid = {session}");
    while Postgres::shared().psql(&sql) != "0" {
        assert!(Instant::now() < limit, "session {session} is still there");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Something to wait for inside the server, for as long as a test wants.
struct Gate {
    keeper: Client,
    number: u64,
}

impl Gate {
    async fn close(postgres: &Postgres) -> Gate {
        let keeper = connect(&postgres.url()).await.unwrap();
        let number = random::below(1 << 31);
        keeper.run(&format!("select pg_advisory_lock({number})")).await.unwrap();
        Gate { keeper, number }
    }

    /// Waits until the gate is open.
    fn pass_sql(&self) -> String {
        format!("select pg_advisory_xact_lock({})", self.number)
    }

    fn is_waited_for(&self) -> bool {
        let number = self.number;
        let sql = format!("select bool_or(not granted) from pg_locks where objid = {number}");
        Postgres::shared().psql(&sql) == "t"
    }

    async fn open(self) {
        self.keeper.run("select pg_advisory_unlock_all()").await.unwrap();
    }
}
