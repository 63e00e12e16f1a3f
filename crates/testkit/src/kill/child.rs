//! The one that is killed: checks as fast as it can, and says on the pipe what it was told.

use std::io::Write;
use std::path::Path;

use tollgate::{Clock, Policy, SystemClock, Tollgate};

pub(super) const POLICY: &str = "hammered";
pub(super) const THREADS: usize = 4;
pub(super) const USERS_PER_THREAD: usize = 3;
pub(super) const GROUPS: usize = 5;

/// Windows so long that nothing leaves them while this runs.
pub(super) fn policy(durability: &str) -> String {
    format!(
        r#"durability = "{durability}"
limits = [
    {{ name = "all",   max = 9000000000, per = "3650d" }},
    {{ name = "group", max = 9000000000, per = "365d", by = ["group"], algorithm = "sliding" }},
    {{ name = "user",  max = 9000000000, per = "3650d", by = ["user"], private = true }},
]"#
    )
}

pub(super) fn user(number: usize) -> String {
    format!("user-{number}")
}

pub(super) fn group(number: usize) -> String {
    format!("group-{number}")
}

/// Opens the file and checks from several threads until killed. Each line on `stdout` is one
/// answer: the user's number, the place in the order, when it was decided and when answered.
pub fn hammer(file: &Path, durability: &str) -> Result<(), String> {
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|e| said(&e))?;
    let gate = runtime.block_on(async {
        let gate = Tollgate::open(&format!("sqlite:{}", file.display())).await?;
        gate.apply(&Policy::from_toml(POLICY, &policy(durability))?, "kill").await?;
        Ok::<_, tollgate::Error>(gate)
    });
    let gate = gate.map_err(|error| said(&error))?;
    std::thread::scope(|scope| {
        let gate = &gate;
        let threads: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || check_for_ever(gate, thread))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| "a thread of the child panicked".to_owned())?
        })
    })
}

fn check_for_ever(gate: &Tollgate, thread: usize) -> Result<(), String> {
    for turn in 0.. {
        let number = thread * USERS_PER_THREAD + turn % USERS_PER_THREAD;
        let (user, group) = (user(number), group(turn % GROUPS));
        let decision = gate
            .check_blocking(POLICY, &[("user", &user), ("group", &group)], 1)
            .map_err(|error| error.to_string())?;
        if !decision.allowed() {
            return Err("the windows are too small for this".into());
        }
        let place = decision.limits[0].standing.used;
        let decided_at = decision.decided_at.as_micros();
        let answered_at = SystemClock.now().as_micros();
        // One write per line, so that a kill leaves whole lines and at most one half.
        let line = format!("{number} {place} {decided_at} {answered_at}\n");
        std::io::stdout().lock().write_all(line.as_bytes()).map_err(|error| error.to_string())?;
    }
    Ok(())
}
