//! Slots that are counted again because windows have another length: in parts, each of which is kept.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::{Duration, Instant as Stopwatch};

use testkit::random;
use testkit::servers::Postgres;
use tollgate::{Instant, Policy, SlotAnswer, SlotAsk, Tollgate};

const SLOTS: u64 = 200_000;
const AT: Instant = Instant::from_micros(1_900_000_000_000_000);

async fn windows(gate: &Tollgate, per: &str) {
    let limits = format!(r#"limits = [{{ name = "window", max = 100, per = "{per}" }}]"#);
    gate.apply(&Policy::from_toml("s", &limits).unwrap(), "test").await.unwrap();
}

fn event(id: &str) -> Vec<SlotAsk> {
    vec![SlotAsk { event_id: id.to_owned(), requested_at: Some(AT) }]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_of_very_many_slots_is_counted_again_in_parts_also_if_nobody_waits_that_long() {
    let schema = random::name("s").replace('-', "_");
    let url = format!("{}?schema={schema}&deadline=20ms", Postgres::shared().url());
    let gate = Tollgate::open(&url).await.unwrap();
    windows(&gate, "4s").await;
    while gate.assign_slots("s", event("first")).await.is_err() {}
    let psql = |sql: &str| Postgres::shared().psql(sql);
    // All of a day or so, 96 in each window of four seconds.
    psql(&format!(
        "insert into {schema}.slot select 'event ' || n, 's', 1, {at}, true, \
         {at} + n * 41667, 4000000, n % 96, {at} from generate_series(1::bigint, {SLOTS}) n; \
         analyze {schema}.slot",
        at = AT.as_micros()
    ));
    let revision =
        || -> i64 { psql(&format!("select revision from {schema}.schedule")).parse().unwrap() };
    windows(&gate, "5s").await;
    let (before, started) = (revision(), Stopwatch::now());
    let mut gave_up = 0;
    let given = loop {
        match gate.assign_slots("s", event("second")).await {
            Ok(answers) => break answers,
            Err(_) => gave_up += 1,
        }
        assert!(started.elapsed() < Duration::from_secs(30), "it is never counted to the end");
    };
    assert!(gave_up > 0, "a count of so many takes longer than an answer may");
    assert!(revision() > before + 1, "what was counted is kept before all of it is");
    // 120 of them already lie in each of the new windows, as long as there are any.
    let [SlotAnswer::Given(slot) | SlotAnswer::Repeated(slot)] = &given[..] else {
        panic!("{given:?}")
    };
    let last = AT.as_micros() + i64::try_from(SLOTS).unwrap() * 41_667;
    assert!(slot.scheduled_at.as_micros() >= last / 5_000_000 * 5_000_000, "{slot:?}");
    let recount = gate.verify_slots("s").await.unwrap();
    assert_eq!((recount.slots, recount.drifts.len()), (SLOTS + 2, 0), "{:?}", recount.drifts);
}
