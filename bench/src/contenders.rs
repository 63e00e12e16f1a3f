//! Who is measured in process, behind one shape: run until told to stop, say how many passed.

use std::collections::HashMap;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota};
use limitador::RateLimiter;
use limitador::limit::{Context, Limit, Namespace};
use tollgate::{Decision, Error, Limiter, Policy, Tollgate};

/// More than any slice spends, so that all is allowed.
const PLENTY: u32 = 1_000_000_000;
/// The flag to stop is looked at once per so many checks; the clock only at the ends of a slice.
const CHECKS_PER_LOOK: usize = 256;

pub(crate) const BUCKET: &str = r#"limits = [{ name = "user", max = 1000000000, per = "60s", algorithm = "bucket", by = ["user"] }]"#;
pub(crate) const FIXED: &str =
    r#"limits = [{ name = "user", max = 1000000000, per = "60s", by = ["user"] }]"#;
pub(crate) const SLIDING: &str = r#"limits = [{ name = "user", max = 1000000000, per = "60s", algorithm = "sliding", by = ["user"] }]"#;
const THREE: &str = r#"limits = [
  { name = "global", max = 1000000000, per = "60s", algorithm = "sliding" },
  { name = "ip", max = 1000000000, per = "60s", algorithm = "sliding", by = ["ip"] },
  { name = "email", max = 1000000000, per = "1h", algorithm = "sliding", by = ["email"] },
]"#;
const REFUSING: &str =
    r#"limits = [{ name = "user", max = 1, per = "1h", algorithm = "bucket", by = ["user"] }]"#;

/// One who asks, made before the measurement.
pub(crate) struct Subject {
    pub(crate) user: String,
    pub(crate) ip: String,
    pub(crate) email: String,
}

impl Subject {
    pub(crate) fn new(number: usize) -> Self {
        let [_, b, c, d] = u32::try_from(number).unwrap_or(u32::MAX).to_be_bytes();
        Self {
            user: format!("user-{number:08}"),
            ip: format!("10.{b}.{c}.{d}"),
            email: format!("user-{number:08}@example.com"),
        }
    }
}

/// One thread's part of a slice.
pub(crate) struct Turn<'a> {
    pub(crate) subjects: &'a [Subject],
    pub(crate) first: usize,
    /// It ends after about so many checks, or when told to stop.
    pub(crate) most: u64,
    pub(crate) stop: &'a AtomicBool,
}

/// Checks made in one thread's turn.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) checks: u64,
    pub(crate) allowed: u64,
}

impl Turn<'_> {
    fn run(&self, mut allowed: impl FnMut(&Subject) -> bool) -> Tally {
        let mut tally = Tally::default();
        let mut next = self.first;
        while tally.checks < self.most && !self.stop.load(Ordering::Relaxed) {
            for _ in 0..CHECKS_PER_LOOK {
                tally.allowed += u64::from(allowed(black_box(&self.subjects[next])));
                next += 1;
                if next == self.subjects.len() {
                    next = 0;
                }
            }
            tally.checks += CHECKS_PER_LOOK as u64;
        }
        tally
    }
}

type Run = Box<dyn Fn(&Turn<'_>) -> Tally + Send + Sync>;

pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) allows: bool,
    /// Whether it tells keys apart at all.
    pub(crate) keyed: bool,
    pub(crate) run: Run,
}

pub(crate) const OURS_BUCKET: &str = "tollgate bucket";
pub(crate) const OURS_FIXED: &str = "tollgate fixed";
pub(crate) const OURS_SLIDING: &str = "tollgate sliding";
pub(crate) const GOVERNOR: &str = "governor keyed";
pub(crate) const GOVERNOR_DIRECT: &str = "governor direct (one key, no map)";
pub(crate) const LIMITADOR: &str = "limitador, 1 limit";
pub(crate) const OURS_THREE: &str = "tollgate, 3 limits";
pub(crate) const LIMITADOR_THREE: &str = "limitador, 3 limits";
pub(crate) const OURS_REFUSING: &str = "tollgate bucket, all refused";
pub(crate) const GOVERNOR_REFUSING: &str = "governor keyed, all refused";

/// All of them, fresh.
pub(crate) fn all() -> Result<Vec<Contender>> {
    let plenty = Quota::per_minute(NonZeroU32::new(PLENTY).expect("it is not zero"));
    let refusing = Quota::with_period(Duration::from_secs(3600)).expect("an hour is not zero");
    let direct = DefaultDirectRateLimiter::direct(plenty);
    Ok(vec![
        ours_by_user(OURS_BUCKET, BUCKET, true)?,
        governor(GOVERNOR, plenty, true),
        ours_by_user(OURS_FIXED, FIXED, true)?,
        ours_by_user(OURS_SLIDING, SLIDING, true)?,
        Contender {
            name: GOVERNOR_DIRECT,
            allows: true,
            keyed: false,
            run: Box::new(move |turn| turn.run(|_| black_box(direct.check()).is_ok())),
        },
        ours_by_user(OURS_REFUSING, REFUSING, false)?,
        governor(GOVERNOR_REFUSING, refusing, false),
        ours_three()?,
        limitador(
            LIMITADOR,
            vec![Limit::new("bench", PLENTY.into(), 60, [], ["user".try_into()?])],
            |subject| HashMap::from([("user".to_owned(), subject.user.clone())]),
        ),
        limitador(LIMITADOR_THREE, three_limits()?, |subject| {
            let [ip, email] = [&subject.ip, &subject.email].map(Clone::clone);
            HashMap::from([("ip".to_owned(), ip), ("email".to_owned(), email)])
        }),
    ])
}

pub(crate) fn limiter(policy: &str) -> Result<Limiter> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let gate = runtime.block_on(Tollgate::open("memory:"))?;
    Ok(gate.limiter(Policy::from_toml("bench", policy)?))
}

fn ours_by_user(name: &'static str, policy: &str, allows: bool) -> Result<Contender> {
    let limiter = limiter(policy)?;
    Ok(Contender {
        name,
        allows,
        keyed: true,
        run: ours(limiter, |limiter, subject, decision| {
            limiter.check_into(&[("user", &subject.user)], 1, decision)
        }),
    })
}

fn ours_three() -> Result<Contender> {
    let limiter = limiter(THREE)?;
    let run = ours(limiter, |limiter, subject, decision| {
        limiter.check_into(&[("ip", &subject.ip), ("email", &subject.email)], 1, decision)
    });
    Ok(Contender { name: OURS_THREE, allows: true, keyed: true, run })
}

fn ours(
    limiter: Limiter,
    check: impl Fn(&Limiter, &Subject, &mut Decision) -> Result<(), Error> + Send + Sync + 'static,
) -> Run {
    Box::new(move |turn| {
        let mut decision = Decision::blank();
        turn.run(|subject| match check(&limiter, subject, &mut decision) {
            Ok(()) => black_box(&decision).allowed(),
            Err(_) => false,
        })
    })
}

fn governor(name: &'static str, quota: Quota, allows: bool) -> Contender {
    let limiter = DefaultKeyedRateLimiter::<String>::dashmap(quota);
    let run: Run = Box::new(move |turn| {
        turn.run(|subject| black_box(&limiter.check_key(&subject.user)).is_ok())
    });
    Contender { name, allows, keyed: true, run }
}

pub(crate) fn three_limits() -> Result<Vec<Limit>> {
    Ok(vec![
        Limit::new("bench", PLENTY.into(), 60, [], []),
        Limit::new("bench", PLENTY.into(), 60, [], ["ip".try_into()?]),
        Limit::new("bench", PLENTY.into(), 3600, [], ["email".try_into()?]),
    ])
}

/// Its context holds the values, so a hot key can have one made in advance and others cannot.
fn limitador(
    name: &'static str,
    limits: Vec<Limit>,
    values_of: fn(&Subject) -> HashMap<String, String>,
) -> Contender {
    let limiter = RateLimiter::new(1_000_000);
    for limit in limits {
        limiter.add_limit(limit);
    }
    let namespace = Namespace::from("bench");
    let run: Run = Box::new(move |turn| {
        let check = |context: &Context<'_>| {
            black_box(&limiter.check_rate_limited_and_update(&namespace, context, 1))
                .as_ref()
                .is_ok_and(|result| !result.limited)
        };
        if let [hot] = turn.subjects {
            let context = values_of(hot).into();
            return turn.run(|_| check(&context));
        }
        turn.run(|subject| check(&values_of(subject).into()))
    });
    Contender { name, allows: true, keyed: true, run }
}
