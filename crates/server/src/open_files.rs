//! How many files this process may have open. A connection is one; what is left over is the store's.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Kept for files, connections to databases and mail servers, and whatever else is not a client.
const RESERVED: u64 = 100;

/// Raises the limit as far as the system lets us, and says how many clients there may then be, `wanted` at
/// most. Shells and service managers often start a process with room for 1,024 files although it may have
/// many more; and once all are taken by idle clients, not even the store could open one.
pub(crate) fn room_for_clients(wanted: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    let needed = (wanted as u64).saturating_add(RESERVED);
    let files = limit.maximum.map_or(needed, |hard| hard.min(needed));
    let mut soft = limit.current.unwrap_or(u64::MAX);
    if soft < files {
        let raised = Rlimit { current: Some(files), maximum: limit.maximum };
        match setrlimit(Resource::Nofile, raised) {
            Ok(()) => soft = files,
            Err(error) => tracing::debug!(%error, "the limit on open files stays as it is"),
        }
    }
    // Half of very few is better than none.
    let room = soft.saturating_sub(RESERVED).max(soft / 2).max(1);
    let room = usize::try_from(room).unwrap_or(usize::MAX).min(wanted);
    if room < wanted {
        tracing::warn!(
            "{soft} files may be open at a time, so {room} clients are let in at a time and not {wanted}: \
             raise the limit (ulimit -n, LimitNOFILE=), or set server.max_connections = {room}"
        );
    }
    room
}
