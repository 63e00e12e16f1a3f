//! With the server's own allocator: what idle keys took goes back to the system by itself.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use testkit::ManualClock;
use tollgate::{Policy, Span, Tollgate};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const KEYS: usize = 700_000;

/// The thread that asked for the memory is idle when it is given back, as a server's threads are.
#[tokio::test]
async fn a_sweep_gives_memory_back_without_further_requests() {
    let clock = ManualClock::start();
    let gate = Tollgate::open_with_clock("memory:", clock.shared()).await.unwrap();
    let limits =
        r#"limits = [{ name = "user", max = 1, per = "1h", algorithm = "bucket", by = ["user"] }]"#;
    let limiter = gate.limiter(Policy::from_toml("memory", limits).unwrap());
    let empty = resident_bytes();
    let (filled, full) = std::sync::mpsc::channel();
    let (done, swept) = std::sync::mpsc::channel::<()>();
    let filling = std::thread::spawn(move || {
        for number in 0..KEYS {
            let user = format!("user-{number:08}");
            assert!(limiter.check_blocking(&[("user", &user)], 1).unwrap().allowed());
        }
        filled.send(()).unwrap();
        swept.recv().unwrap();
    });
    full.recv().unwrap();
    let full = resident_bytes();
    assert_eq!(gate.stats().keys, KEYS);
    assert!(full - empty > KEYS * 40, "{full} bytes with all keys, {empty} without any");

    clock.advance(Span::from_secs(7200));
    gate.sweep().await.unwrap();
    assert_eq!(gate.stats().keys, 0);
    let left = resident_bytes().saturating_sub(empty);
    assert!(left < (full - empty) / 2, "{left} bytes stayed of {}", full - empty);
    done.send(()).unwrap();
    filling.join().unwrap();
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    let kib: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib * 1024
}
