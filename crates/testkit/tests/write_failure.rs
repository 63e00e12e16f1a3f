//! Writes that fail while the store runs. A limit on the size of files (`ulimit -f`) makes them:
//! the file cannot grow, as on a full disk, until the limit is lifted.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tollgate::Tollgate;

/// What the file and its log may grow to. Opening takes about 100 KiB.
const MAX_FILE_KIB: &str = "400";

/// A store in a process of its own whose writes fail beyond a size.
struct Puppet {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    folder: TempDir,
}

impl Puppet {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // A write beyond the limit raises SIGXFSZ, which would end the process; ignored signals
        // stay ignored across exec, and the write fails with EFBIG instead. Only the soft limit
        // is set, so that it can be lifted again.
        let mut child = Command::new("bash")
            .args(["-c", r#"trap "" XFSZ; ulimit -S -f "$1"; shift; exec "$@""#, "bash"])
            .args([MAX_FILE_KIB, env!("CARGO_BIN_EXE_testkit"), "puppet"])
            .arg(file(&folder))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, stdin, stdout, folder }
    }

    fn say(&mut self, line: &str) -> String {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
        let mut reply = String::new();
        self.stdout.read_line(&mut reply).unwrap();
        assert!(reply.ends_with('\n'), "the puppet ended at {line:?}");
        reply.trim_end().to_owned()
    }

    /// Checks with `durability = "sync"`, a new user each time, until the file is full. Returns
    /// the users that were allowed, and the one that got the first error.
    fn fill(&mut self) -> (Vec<String>, String) {
        let mut allowed = Vec::new();
        for number in 0..5_000 {
            let user = format!("u{number}");
            let reply = self.say(&format!("check sync {user}"));
            if reply.starts_with("error") {
                assert!(!allowed.is_empty(), "{reply}");
                return (allowed, user);
            }
            assert!(reply.starts_with("allowed 1 "), "{reply}");
            allowed.push(user);
        }
        panic!("the file never became too large");
    }

    /// Sets the soft limit of the running process.
    fn limit(&self, bytes: &str) {
        let (pid, limit) = (self.child.id().to_string(), format!("--fsize={bytes}:"));
        let set = Command::new("prlimit").args(["--pid", &pid, &limit]).status();
        assert!(set.unwrap().success());
    }

    /// Lets the file grow again and waits until the store has noticed.
    fn lift(&mut self) {
        self.limit("unlimited");
        let begun = Instant::now();
        while self.say("ping") != "pong" {
            assert!(begun.elapsed() < Duration::from_secs(20), "the store did not come back");
        }
    }

    /// Ends it in good order.
    fn close(mut self) -> TempDir {
        drop(self.stdin.take());
        assert!(self.child.wait().unwrap().success());
        self.folder
    }

    fn kill(mut self) -> TempDir {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.folder
    }
}

fn file(folder: &TempDir) -> PathBuf {
    folder.path().join("tollgate.db")
}

/// What the file counts for each of these users, and for all together.
fn counts(file: &Path, policy: &str, users: &[String]) -> (BTreeMap<String, u64>, u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let gate = Tollgate::open(&format!("sqlite:{}", file.display())).await.unwrap();
        let (mut counts, mut all) = (BTreeMap::new(), 0);
        for user in users {
            let decision = gate.peek(policy, &[("user", user)], 1).await.unwrap().decision;
            counts.insert(user.clone(), decision.limits[0].standing.used);
            all = decision.limits[1].standing.used;
        }
        (counts, all)
    })
}

#[test]
fn a_store_that_cannot_write_says_so_and_each_policy_does_what_it_says() {
    let mut puppet = Puppet::start();
    assert!(puppet.say("check local ada").starts_with("allowed 1 1 - "));
    puppet.fill();
    let error = puppet.say("check sync ada");
    assert!(error.starts_with("error unavailable "), "{error}");
    assert!(error.contains(&*file(&puppet.folder).to_string_lossy()), "it names the file: {error}");
    for line in ["check refuse ada", "peek refuse ada", "once k1 refuse ada", "ping", "token t"] {
        let reply = puppet.say(line);
        assert!(reply.starts_with("error unavailable "), "{line}: {reply}");
    }
    for _ in 0..9 {
        assert_eq!(puppet.say("check allow ada"), "allowed 0 0 allowed -");
    }
    assert_eq!(puppet.say("check allow ada 6"), "never-fits 0 0 allowed -");
    // Counted here, from nothing: what the store had counted is out of reach.
    for count in 1..=5 {
        assert_eq!(puppet.say("check local ada"), format!("allowed {count} {count} local -"));
    }
    assert_eq!(puppet.say("check local ada"), "refused 5 5 local -");
    assert_ne!(puppet.say("store-errors"), "0");
    puppet.lift();
    assert!(puppet.say("check refuse ada").starts_with("allowed 1 "));
    assert!(puppet.say("check allow ada").starts_with("allowed 1 1 - "), "it counts again");
    assert!(puppet.say("check local ada").starts_with("allowed 2 2 - "), "as the store knows it");
    // The next time it begins from nothing again.
    puppet.limit("1");
    assert!(puppet.say("check sync eve").starts_with("error unavailable "));
    assert_eq!(puppet.say("check local ada"), "allowed 1 1 local -");
    puppet.lift();
    puppet.close();
}

#[test]
fn the_error_of_a_failed_write_says_what_to_do() {
    let mut puppet = Puppet::start();
    puppet.fill();
    let error = puppet.say("check sync ada");
    for words in ["check its disk", "once that works again, so does writing, by itself"] {
        assert!(error.contains(words), "not {words:?}: {error}");
    }
    puppet.kill();
}

#[test]
fn what_was_answered_before_and_after_a_failure_is_in_the_file() {
    let mut puppet = Puppet::start();
    let (mut users, failed) = puppet.fill();
    for number in 0..20 {
        let user = format!("during{number}");
        assert!(puppet.say(&format!("check sync {user}")).starts_with("error"));
    }
    puppet.lift();
    for number in 0..20 {
        let user = format!("after{number}");
        assert!(puppet.say(&format!("check sync {user}")).starts_with("allowed 1 "));
        users.push(user);
    }
    let folder = puppet.close();
    let (counts_of, all) = counts(&file(&folder), "sync", &users);
    assert!(counts_of.values().all(|used| *used == 1), "{counts_of:?}");
    // The check that got the error may have been counted: never too little, and in both limits.
    let (failed, _) = counts(&file(&folder), "sync", &[failed]);
    assert_eq!(all, users.len() as u64 + failed.values().sum::<u64>());
}

#[test]
fn a_kill_while_writes_fail_forgets_nothing_that_was_answered_with_sync() {
    let mut puppet = Puppet::start();
    let (users, failed) = puppet.fill();
    for number in 0..20 {
        puppet.say(&format!("check sync during{number}"));
    }
    let folder = puppet.kill();
    let (counts_of, all) = counts(&file(&folder), "sync", &users);
    assert!(counts_of.values().all(|used| *used == 1), "{counts_of:?}");
    let (failed, _) = counts(&file(&folder), "sync", &[failed]);
    assert_eq!(all, users.len() as u64 + failed.values().sum::<u64>());
}

#[test]
fn a_refund_that_could_not_be_written_gives_back_once() {
    let mut puppet = Puppet::start();
    puppet.say("check sync ada");
    let reply = puppet.say("check sync ada");
    let receipt = reply.rsplit(' ').next().unwrap().to_owned();
    puppet.fill();
    for _ in 0..3 {
        let reply = puppet.say(&format!("refund {receipt}"));
        assert!(reply.starts_with("error unavailable "), "{reply}");
    }
    puppet.lift();
    let reply = puppet.say(&format!("refund {receipt}"));
    assert!(["done", "already"].contains(&reply.as_str()), "{reply}");
    assert_eq!(puppet.say(&format!("refund {receipt}")), "already");
    assert!(puppet.say("peek sync ada").contains(" 1 "), "given back exactly once");
    let folder = puppet.close();
    let (counts, _) = counts(&file(&folder), "sync", &["ada".into()]);
    assert_eq!(counts["ada"], 1);
}

#[test]
fn a_request_under_a_key_that_could_not_be_written_counts_once() {
    let mut puppet = Puppet::start();
    puppet.fill();
    for _ in 0..3 {
        let reply = puppet.say("once k1 refuse ada");
        assert!(reply.starts_with("error unavailable "), "{reply}");
    }
    puppet.lift();
    let reply = puppet.say("once k1 refuse ada");
    assert!(reply == "replay" || reply.starts_with("allowed 1 "), "{reply}");
    assert_eq!(puppet.say("once k1 refuse ada"), "replay");
    let folder = puppet.close();
    let (counts, all) = counts(&file(&folder), "refuse", &["ada".into()]);
    assert_eq!((counts["ada"], all), (1, 1));
}
