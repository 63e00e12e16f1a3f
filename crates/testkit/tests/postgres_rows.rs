//! What the PostgreSQL store writes, and what it does not.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use testkit::servers::Postgres;
use testkit::{ManualClock, random};
use tollgate::{Clock, Policy, Span, Tollgate};

struct Ground {
    schema: String,
    clock: ManualClock,
    gate: Tollgate,
}

async fn open(settings: &str) -> Ground {
    let schema = random::name("s").replace('-', "_");
    let postgres = Postgres::shared();
    let url = format!("{}?schema={schema}&deadline=10s{settings}", postgres.url());
    let clock = ManualClock::start();
    let gate = Tollgate::open_with_clock(&url, clock.shared()).await.unwrap();
    Ground { schema, clock, gate }
}

impl Ground {
    async fn apply(&self, limits: &str) {
        let policy = Policy::from_toml("p", &format!("limits = [{limits}]")).unwrap();
        self.gate.apply(&policy, "test").await.unwrap();
    }

    fn ask(&self, sql: &str) -> i64 {
        let sql = sql.replace("counter", &format!("{}.counter", self.schema));
        Postgres::shared().psql(&sql).parse().unwrap()
    }

    /// Rows of counters, and a number that grows with every one written.
    fn rows(&self) -> (i64, i64) {
        let written = "select coalesce(sum(xmin::text::bigint), 0) from counter";
        (self.ask("select count(*) from counter"), self.ask(written))
    }

    async fn allowed(&self, user: &str) -> bool {
        self.gate.check("p", &[("user", user)], 1).await.unwrap().allowed()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_and_a_peek_write_nothing() {
    let ground = open("&shield=off").await;
    ground
        .apply(
            r#"{ name = "all", max = 3, per = "1h" },
               { name = "user", max = 2, per = "1h", by = ["user"] }"#,
        )
        .await;
    assert!(ground.allowed("ada").await && ground.allowed("ada").await);
    let before = ground.rows();
    assert_eq!(before.0, 2);
    assert!(!ground.allowed("ada").await);
    ground.gate.peek("p", &[("user", "nobody has this name")], 1).await.unwrap();
    ground.gate.peek("p", &[("user", "ada")], 1).await.unwrap();
    assert_eq!(ground.rows(), before, "nothing was written");
    assert!(ground.allowed("bob").await);
    let before = ground.rows();
    assert!(!ground.allowed("a new user, refused because of all").await);
    assert_eq!(ground.rows(), before, "not even the key of one who was refused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_few_keys_are_counted_without_waiting_for_the_database_to_analyse() {
    let ground = open("").await;
    ground.apply(r#"{ name = "user", max = 3, per = "1h", by = ["user"] }"#).await;
    for user in ["ada", "bob", "carol", "ada"] {
        assert!(ground.allowed(user).await);
    }
    ground.gate.sweep().await.unwrap();
    assert_eq!(ground.gate.stats().keys, 3);
    ground.clock.advance(Span::from_secs(7_200));
    ground.gate.sweep().await.unwrap();
    assert_eq!(ground.gate.stats().keys, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hot_key_is_updated_in_place() {
    let ground = open("").await;
    ground
        .apply(
            r#"{ name = "user", max = 1000000, per = "1h", by = ["user"], algorithm = "sliding" }"#,
        )
        .await;
    for _ in 0..300 {
        assert!(ground.allowed("ada").await);
        ground.clock.advance(Span::from_secs(1));
    }
    let schema = &ground.schema;
    let stats = format!(
        "select n_tup_upd || ' ' || n_tup_hot_upd from pg_stat_user_tables \
         where schemaname = '{schema}' and relname = 'counter'"
    );
    let pages = ground.ask("select pg_relation_size('counter') / 8192");
    // A session that stays tells of its last updates later, or (before PostgreSQL 15) with its next.
    drop(ground.gate);
    let (mut updated, mut in_place) = (0, 0);
    for _ in 0..200 {
        let text = Postgres::shared().psql(&stats);
        let (all, hot) = text.split_once(' ').unwrap();
        (updated, in_place) = (all.parse().unwrap(), hot.parse::<i64>().unwrap());
        if updated >= 300 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(updated >= 290, "only {updated} updates are known of");
    assert!(in_place * 100 >= updated * 95, "{in_place} of {updated} updates were heap-only");
    assert!(pages <= 4, "the table stays small");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_ends_when_nothing_is_left_that_is_over_and_not_with_the_last_key() {
    let ground = open("").await;
    ground.apply(r#"{ name = "user", max = 3, per = "1h", by = ["user"] }"#).await;
    assert!(ground.allowed("ada").await, "one key, and far more of everything else");
    let Ground { schema, .. } = &ground;
    let add = |what: &str| {
        Postgres::shared()
            .psql(&format!("insert into {schema}.{what} from generate_series(1, 2500) n"));
    };
    add("record (id, fingerprint, body, expires_at) select int4send(n), '', '', n");
    add("refund (run, sequence, expires_at) select 1, n, n");
    Postgres::shared().psql(&format!("insert into {schema}.schedule values ('p', 1000000, 1, 0)"));
    add("slot select 'event ' || n, 'p', 1, n, true, n, 1000000, n, n");
    add("slot_cancel select 'event ' || n, n");
    add("slot_window select 'p', n, '', 1");
    ground.gate.sweep().await.unwrap();
    for table in ["record", "refund", "slot", "slot_cancel", "slot_window"] {
        let left = ground.ask(&format!("select count(*) from {schema}.{table}"));
        assert_eq!(left, 0, "of {table}");
    }
    assert_eq!(ground.rows().0, 1, "what counts stays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_idle_goes_and_what_is_not_stays() {
    let ground = open("").await;
    ground
        .apply(r#"{ name = "short", max = 5, per = "1m", by = ["user"] }, { name = "long", max = 5, per = "1d", by = ["user"] }"#)
        .await;
    // More than one step of a sweep looks at.
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..1500 {
        let gate = ground.gate.clone();
        tasks.spawn(async move {
            let user = format!("user {number}");
            gate.check("p", &[("user", &user)], 1).await.unwrap();
        });
    }
    tasks.join_all().await;
    assert_eq!(ground.rows().0, 3000);
    ground.clock.advance(Span::from_secs(3600));
    ground.gate.sweep().await.unwrap();
    assert_eq!(ground.rows().0, 1500, "a minute is over, the day is not");
    let answer = ground.gate.peek("p", &[("user", "user 7")], 1).await.unwrap();
    let used: Vec<u64> = answer.decision.limits.iter().map(|limit| limit.standing.used).collect();
    assert_eq!(used, [0, 1]);
    ground.clock.advance(Span::from_secs(86_400));
    ground.gate.sweep().await.unwrap();
    assert_eq!(ground.rows().0, 0);
    assert!(ground.gate.now() >= ground.clock.now());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_passes_over_what_is_in_use() {
    let ground = open("").await;
    ground.apply(r#"{ name = "user", max = 5, per = "1m", by = ["user"] }"#).await;
    assert!(ground.allowed("ada").await && ground.allowed("bob").await);
    let (client, connection) =
        tokio_postgres::connect(&Postgres::shared().url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let counter = format!("{}.counter", ground.schema);
    let hold = format!("begin; select from {counter} where key like '%ada' for update");
    client.batch_execute(&hold).await.unwrap();
    ground.clock.advance(Span::from_secs(3600));
    ground.gate.sweep().await.unwrap();
    assert_eq!(ground.rows().0, 1);
    client.batch_execute("rollback").await.unwrap();
    ground.gate.sweep().await.unwrap();
    assert_eq!(ground.rows().0, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_count_is_an_error_and_not_a_fresh_start() {
    let ground = open("").await;
    ground.apply(r#"{ name = "user", max = 5, per = "1h", by = ["user"] }"#).await;
    assert!(ground.allowed("ada").await && ground.allowed("bob").await);
    let damage = "update counter set state = '\\xffff' where key like '%ada' returning 1";
    assert_eq!(ground.ask(&format!("with damaged as ({damage}) select count(*) from damaged")), 1);
    let error = ground.gate.check("p", &[("user", "ada")], 1).await.unwrap_err();
    let tollgate::Error::Store(error) = error else { panic!("{error}") };
    assert_eq!(error.kind(), tollgate::StoreErrorKind::Corrupt);
    assert!(ground.allowed("bob").await);
}

/// By the database's own clock, and in passing: a key that is idle at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_key_keeps_its_row_for_as_long_as_is_set() {
    let postgres = Postgres::shared();
    let policy = r#"limits = [{ name = "user", max = 1000000, per = "1s", by = ["user"], algorithm = "bucket" }]"#;
    let policy = Policy::from_toml("p", policy).unwrap();
    let mut grounds = Vec::new();
    for keep_idle in ["0s", "60s"] {
        let schema = random::name("s").replace('-', "_");
        let url = format!("{}?schema={schema}&keep_idle={keep_idle}", postgres.url());
        let gate = Tollgate::open(&url).await.unwrap();
        gate.apply(&policy, "test").await.unwrap();
        assert!(gate.check("p", &[("user", "ada")], 1).await.unwrap().allowed());
        grounds.push((schema, gate));
    }
    let rows = |schema: &str| postgres.psql(&format!("select count(*) from {schema}.counter"));
    let begun = std::time::Instant::now();
    while rows(&grounds[0].0) != "0" {
        assert!(begun.elapsed().as_secs() < 60, "nobody sweeps");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    // A whole walk of the other one, and it swept at that: a count that is none goes with it.
    let (schema, _gate) = &grounds[1];
    postgres.psql(&format!(r"insert into {schema}.counter values ('\x00', '', 1)"));
    while rows(schema) != "1" {
        assert!(begun.elapsed().as_secs() < 60, "nobody sweeps there");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(
        postgres.psql(&format!(r"select count(*) from {schema}.counter where key = '\x00'")),
        "0"
    );
}
