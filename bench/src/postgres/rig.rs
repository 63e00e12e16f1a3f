//! One private PostgreSQL, and everybody who is measured on it.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use testkit::servers::{Postgres, Settings};

use super::inprocess::InProcess;
use super::loads::Load;
use super::{COMPARED, pgbench};
use crate::outcome::Outcome;
use crate::peers;
use crate::redis::{self, Checks, FSYNCS, Redis};
use crate::servers::Server;
use crate::wrk;

pub(crate) const IN_PROCESS: &str = "tollgate in process";
pub(crate) const HTTP: &str = "tollgate over HTTP";
pub(crate) const FLEXIBLE: &str = "rate-limiter-flexible (Node)";

/// As a careful operator would have it, with room for the most callers.
const LINES: [&str; 3] =
    ["shared_buffers = '128MB'", "max_connections = 600", "synchronous_commit = on"];
/// The usual ways, restated.
const USUAL: [&str; 3] = [
    include_str!("../../sql/usual_upsert.sql"),
    include_str!("../../sql/usual_quota.sql"),
    include_str!("../../sql/usual_sliding.sql"),
];

// In the order in which they must end.
pub(crate) struct Rig {
    in_process: InProcess,
    server: Server,
    wrk: PathBuf,
    node: Option<PathBuf>,
    /// By when they flush; none if there is no Redis here.
    redis: Vec<(&'static str, Redis)>,
    postgres: Postgres,
    /// Who is not measured, and why.
    pub(crate) missing: Vec<String>,
}

/// Somebody measured under one load.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    way: Way,
}

enum Way {
    Sql(String),
    InProcess,
    Http,
    Flexible(PathBuf),
    /// By when it flushes.
    Redis(&'static str),
}

impl Rig {
    /// `parameters` are those of our store's URL.
    pub(crate) fn start(parameters: &str) -> Result<Self> {
        let program = peers::tollgate()?;
        let wrk = peers::wrk()?;
        let mut missing = Vec::new();
        let node = match peers::flexible() {
            Ok(folder) => Some(folder),
            Err(error) => {
                missing.push(format!("{FLEXIBLE}: {error:#}"));
                None
            }
        };
        let redis = match start_redis() {
            Ok(redis) => redis,
            Err(error) => {
                missing.push(format!("Redis: {error:#}"));
                Vec::new()
            }
        };
        let lines = LINES.map(str::to_owned).to_vec();
        let postgres = Postgres::start_with(Settings { fsync: true, lines, ..Settings::default() });
        let usual = format!("create schema usual; set search_path to usual;\n{}", USUAL.concat());
        postgres.psql_through(&postgres.url(), &usual).map_err(anyhow::Error::msg)?;
        let url = format!("{}?{parameters}", postgres.url());
        let in_process = InProcess::open(&url)?;
        let server = Server::tollgate(&program, &url)?;
        Ok(Self { in_process, server, wrk, node, redis, postgres, missing })
    }

    /// What the server says of itself.
    pub(crate) fn version(&self) -> String {
        self.postgres.psql("show server_version")
    }

    /// Those who carry this load.
    pub(crate) fn contenders(&self, load: Load) -> Vec<Contender> {
        let sql = |(name, script)| Contender { name, way: Way::Sql(script) };
        let mut contenders: Vec<Contender> = load.scripts().into_iter().map(sql).collect();
        // Right behind what they are compared with: what a disk gives changes by the second.
        let base = contenders.iter().position(|contender| contender.name == load.base());
        let ours = [
            Contender { name: IN_PROCESS, way: Way::InProcess },
            Contender { name: HTTP, way: Way::Http },
        ];
        let behind = base.map_or(0, |base| base + 1);
        contenders.splice(behind..behind, ours);
        if let Some(folder) = &self.node
            && matches!(load, Load::Hot | Load::Many)
        {
            contenders.push(Contender { name: FLEXIBLE, way: Way::Flexible(folder.clone()) });
        }
        // It has no script of its own for three keys at once.
        if load != Load::Tiers {
            let redis = self.redis.iter().map(|(fsync, _)| fsync);
            contenders.extend(
                redis
                    .map(|fsync| Contender { name: redis::name_of(fsync), way: Way::Redis(fsync) }),
            );
        }
        contenders
    }

    /// With all numbers of callers: ours and what it is compared with; the rest on a hot key only.
    fn takes_part(contender: &Contender, load: Load, callers: usize) -> bool {
        callers == COMPARED
            || match contender.way {
                Way::InProcess | Way::Http => true,
                Way::Flexible(_) => false,
                Way::Sql(_) | Way::Redis(_) => load == Load::Hot || contender.name == load.base(),
            }
    }

    /// One slice; nothing if it does not take part with so many callers.
    pub(crate) fn run(
        &self,
        contender: &Contender,
        load: Load,
        callers: usize,
        slice: Duration,
    ) -> Result<Option<Outcome>> {
        if !Self::takes_part(contender, load, callers) {
            return Ok(None);
        }
        let outcome = match &contender.way {
            Way::Sql(script) => {
                // The usual functions name their tables without a schema.
                let url = format!("{}?options=-csearch_path%3Dusual", self.postgres.url());
                pgbench::run(&url, script, callers, slice)
            }
            Way::InProcess => self.in_process.run(load, callers, slice),
            Way::Http => self.run_http(load, callers, slice),
            Way::Redis(fsync) => {
                let checks = Checks { keys: load.keys(), expected: load.expected() };
                let redis = self.redis.iter().find(|(name, _)| name == fsync);
                let (_, redis) = redis.context("a contender's server runs")?;
                redis.run(checks, callers, slice)
            }
            Way::Flexible(folder) => {
                let script =
                    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/postgres/flexible.mjs");
                let output = Command::new("node")
                    .arg(script)
                    .arg(folder)
                    .arg(self.postgres.url())
                    .args([load.keys(), callers].map(|number| number.to_string()))
                    .arg(slice.as_secs().to_string())
                    .output()?;
                Outcome::read(&output)
            }
        };
        outcome.map(Some).with_context(|| format!("{}, {callers} callers", contender.name))
    }

    fn run_http(&self, load: Load, callers: usize, slice: Duration) -> Result<Outcome> {
        let request = wrk::Load {
            headers: "",
            port: self.server.port,
            path: "/api/v1/check",
            body: &load.body(),
            keys: load.keys(),
            connections: callers,
            expected: load.expected(),
        };
        wrk::run(&self.wrk, &request, slice)
    }
}

fn start_redis() -> Result<Vec<(&'static str, Redis)>> {
    let program = peers::redis()?;
    FSYNCS.into_iter().map(|fsync| Ok((fsync, Redis::start(&program, fsync)?))).collect()
}
