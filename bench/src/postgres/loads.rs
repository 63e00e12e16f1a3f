//! What everybody is asked for, in the words of each: a policy, a body over HTTP, SQL.

use anyhow::Result;
use tollgate::{Policy, Tollgate};

use crate::contenders::Subject;
use crate::wrk::Expected;

pub(crate) const MANY_KEYS: usize = 10_000;

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Load {
    /// One key, never refused.
    Hot,
    /// Random keys, never refused.
    Many,
    /// A global limit, one by address and one by e-mail, over random callers; never refused.
    Tiers,
    /// One key whose limit is spent: always refused.
    Refusals,
}

pub(crate) const LOADS: [Load; 4] = [Load::Hot, Load::Many, Load::Tiers, Load::Refusals];

const UPSERT: &str = "usual upsert";
const UPSERT_DOOR: &str = "our door check_and_increment_usage";
const QUOTA: &str = "usual quota function";
const QUOTA_DOOR: &str = "our door check_and_consume_quota";
const SLIDING: &str = "usual sliding function";
const SLIDING_DOOR: &str = "our door check_rate_limit";

const ONE: &str = r#"limits = [{ name = "user", max = 1000000000, per = "60s", algorithm = "bucket", by = ["user"] }]"#;
const THREE: &str = r#"limits = [
  { name = "global", max = 1000000000, per = "60s", algorithm = "sliding" },
  { name = "ip", max = 1000000000, per = "60s", algorithm = "sliding", by = ["ip"] },
  { name = "email", max = 1000000000, per = "1h", algorithm = "sliding", by = ["email"] },
]"#;
const SPENT: &str = r#"limits = [{ name = "user", max = 1, per = "30d", by = ["user"] }]"#;

/// Puts the policies in force, and spends what is to be spent.
pub(crate) async fn prepare(gate: &Tollgate) -> Result<()> {
    for load in LOADS {
        let text = match load {
            Load::Hot | Load::Many => ONE,
            Load::Tiers => THREE,
            Load::Refusals => SPENT,
        };
        for policy in [load.policy(), load.http_policy()] {
            gate.apply(&Policy::from_toml(policy, text)?, "bench").await?;
        }
    }
    let subject = Subject::new(1);
    for policy in [Load::Refusals.policy(), Load::Refusals.http_policy()] {
        gate.check(policy, &Load::Refusals.attributes(&subject), 1).await?;
    }
    Ok(())
}

impl Load {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Hot => "one hot key",
            Self::Many => "10,000 random keys",
            Self::Tiers => "three tiers",
            Self::Refusals => "refusals on a hot key",
        }
    }

    /// In the ids of targets.
    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Many => "many",
            Self::Tiers => "tiers",
            Self::Refusals => "refusals",
        }
    }

    pub(crate) fn keys(self) -> usize {
        match self {
            Self::Hot | Self::Refusals => 1,
            Self::Many | Self::Tiers => MANY_KEYS,
        }
    }

    pub(crate) fn expected(self) -> Expected {
        if self == Self::Refusals { Expected::Refused } else { Expected::Allowed }
    }

    /// The SQL that everybody is compared with.
    pub(crate) fn base(self) -> &'static str {
        if self == Self::Tiers { SLIDING } else { UPSERT }
    }

    pub(crate) fn policy(self) -> &'static str {
        match self {
            Self::Hot | Self::Many => "one",
            Self::Tiers => "three",
            Self::Refusals => "spent",
        }
    }

    /// Over HTTP, under counts of its own, as the SQL has tables of its own: nobody is to find
    /// what another's round left behind.
    fn http_policy(self) -> &'static str {
        match self {
            Self::Hot | Self::Many => "one-http",
            Self::Tiers => "three-http",
            Self::Refusals => "spent-http",
        }
    }

    pub(crate) fn attributes(self, subject: &Subject) -> Vec<(&'static str, &str)> {
        match self {
            Self::Tiers => vec![("ip", &subject.ip), ("email", &subject.email)],
            _ => vec![("user", &subject.user)],
        }
    }

    /// The body of a check, for wrk.
    pub(crate) fn body(self) -> String {
        let subject = match self {
            Self::Tiers => r#"{"ip":"10.0.IP","email":"user-KEY@example.com"}"#,
            _ => r#"{"user":"user-KEY"}"#,
        };
        format!(r#"{{"policy":"{}","subject":{subject}}}"#, self.http_policy())
    }

    /// What pgbench runs, by name.
    pub(crate) fn scripts(self) -> Vec<(&'static str, String)> {
        let key = match self {
            Self::Hot | Self::Refusals => "\\set key 1\n",
            Self::Many | Self::Tiers => "\\set key random(1, 10000)\n",
        };
        let limit = if self == Self::Refusals { "1" } else { "1000000000" };
        let user = "('user-' || :key::text)";
        let call = |function: &str, arguments: &str| {
            format!("select * from {function}({});\n", arguments.replace("LIMIT", limit))
        };
        let quota = format!("{user}, '/api', LIMIT, 60");
        let usage = format!("{user}, current_date, 1, LIMIT");
        let sliding = |function: &str| match self {
            Self::Tiers => {
                call(function, "'global', LIMIT, 60")
                    + &call(function, "'ip-' || :key::text, LIMIT, 60")
                    + &call(function, "'email-' || :key::text, LIMIT, 3600")
            }
            _ => call(function, &format!("{user}, LIMIT, 60")),
        };
        // pgbench would put its variables into comments too.
        let upsert: Vec<&str> =
            UPSERT_STATEMENT.lines().filter(|line| !line.starts_with("--")).collect();
        let upsert = [("$1", user), ("$2", "current_date"), ("$3", "1"), ("$4", limit)]
            .iter()
            .fold(upsert.join("\n"), |text, (from, to)| text.replace(from, to));
        let mut scripts = vec![
            (SLIDING, sliding("usual_sliding")),
            (SLIDING_DOOR, sliding("tollgate.check_rate_limit")),
        ];
        if self != Self::Tiers {
            scripts.extend([
                (UPSERT, upsert + ";\n"),
                (UPSERT_DOOR, call("tollgate.check_and_increment_usage", &usage)),
                (QUOTA, call("usual_quota", &quota)),
                (QUOTA_DOOR, call("tollgate.check_and_consume_quota", &quota)),
            ]);
            // The one everybody is compared with comes first.
            scripts.rotate_left(2);
        }
        scripts.into_iter().map(|(name, script)| (name, format!("{key}{script}"))).collect()
    }
}

const UPSERT_STATEMENT: &str = include_str!("../../sql/usual_upsert_statement.sql");
