//! Real servers for tests: private, on the loopback, gone when the test process is gone.
//!
//! [`Postgres`] and [`PgBouncer`] run the machine's own programs in a folder of their own, so no
//! test depends on what else is installed or running, and nothing of that is touched. [`Proxy`]
//! stands in front of any of them and breaks the network on request. Everything here panics with
//! what to do about it, because a test cannot go on without its server.
//!
//! Deliberately absent: containers, a server that outlives its test process, a cached data folder.
//! `initdb` takes under a second, and what is not kept cannot be stale or raced for.

mod account;
mod certificates;
mod pgbouncer;
mod postgres;
mod programs;
mod proxy;
mod watcher;

pub use certificates::Certificates;
pub use pgbouncer::PgBouncer;
pub use postgres::{Postgres, Settings};
pub use proxy::{Moment, Proxy};

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use crate::random;

/// How often a server that starts is asked whether it is there.
const POLL: Duration = Duration::from_millis(10);
/// What a start may take: two cores that compile at the same time are slow.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How often a port may turn out to be taken between its choice and its use.
const PORT_TRIES: u32 = 10;

/// A loopback port nobody listens on at this moment.
///
/// It lies below the range that outgoing connections take theirs from (32768 on Linux): a server
/// that is down for a while finds its port still free, and a client that knocks meanwhile cannot
/// be connected to itself, which TCP does if the client's own port happens to be the one it calls.
pub fn free_port() -> u16 {
    const FIRST: u16 = 15_000;
    const COUNT: u64 = 17_000;
    for _ in 0..1000 {
        let port = FIRST + u16::try_from(random::below(COUNT)).expect("the count fits");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no free loopback port among 1000 between {FIRST} and 32000");
}
