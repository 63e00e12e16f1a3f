//! The small process between us and a server, which ends the server when we end.
//!
//! A server in a `static` is never dropped, and a test process that is killed drops nothing. So
//! each server is the child of a shell script whose input is a pipe that we hold: see `watcher.sh`.
//! It runs as the servers' account, so it may signal them where we might not. Only a SIGKILL of the
//! script itself leaves a server behind.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::Mutex;

use super::account;

const SCRIPT: &str = include_str!("watcher.sh");

#[derive(Debug)]
pub(super) struct Watcher {
    child: Child,
    folder: PathBuf,
    /// None once it is told to end.
    pipes: Mutex<Option<Pipes>>,
}

#[derive(Debug)]
struct Pipes {
    words: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// What the script understands; its answer is whether it was so, or went so.
#[derive(Clone, Copy, Debug)]
pub(super) enum Word {
    Start,
    Runs,
    Stop,
    /// Only PostgreSQL understands it.
    Quit,
    Kill,
    Pause,
    Resume,
}

impl Watcher {
    /// Makes the folder. The program is started by [`Word::Start`], in the folder's `data`.
    pub(super) fn new(program: &Path, arguments: &[&str]) -> Watcher {
        let temporary = std::env::temp_dir();
        let mut command = account::command(Path::new("/bin/sh"), Path::new("/"));
        command.args(["-c", SCRIPT, "watcher"]).arg(&temporary).arg(program).args(arguments);
        // A group of its own: what the terminal sends to ours must not end it before its work.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let mut child = command.spawn().expect("every system has /bin/sh");
        let words = child.stdin.take().expect("it was asked for");
        let answers = BufReader::new(child.stdout.take().expect("it was asked for"));
        let mut pipes = Pipes { words, answers };
        let folder = pipes.line();
        assert!(!folder.is_empty(), "no folder could be made in {}", temporary.display());
        Watcher { child, folder: folder.into(), pipes: Mutex::new(Some(pipes)) }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// What the server said; nothing before its first start.
    pub(super) fn log(&self) -> String {
        self.read("log")
    }

    /// All there is to say about a server that does not do as it should.
    pub(super) fn report(&self) -> String {
        let folder = if self.folder.exists() { "" } else { "its folder is gone; " };
        format!("{folder}the watcher says {:?}, its log:\n{}", self.read("watcher.log"), self.log())
    }

    fn read(&self, file: &str) -> String {
        let bytes = std::fs::read(self.folder.join(file)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub(super) fn ask(&self, word: Word) -> bool {
        let mut pipes = self.pipes.lock().expect("no thread panicked while it asked");
        let pipes = pipes.as_mut().expect("only dropping ends it");
        let line = match word {
            Word::Start => "start\n",
            Word::Runs => "runs\n",
            Word::Stop => "stop\n",
            Word::Quit => "quit\n",
            Word::Kill => "kill\n",
            Word::Pause => "pause\n",
            Word::Resume => "resume\n",
        };
        pipes.words.write_all(line.as_bytes()).expect("the watcher lives as long as we hold it");
        match pipes.line().as_str() {
            "yes" => true,
            "no" => false,
            other => panic!("the watcher answers {other:?} to {word:?}"),
        }
    }

    /// Like [`Watcher::ask`], where "no" is a surprise.
    pub(super) fn order(&self, word: Word) {
        assert!(self.ask(word), "{word:?} did not work: {}", self.report());
    }
}

impl Pipes {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the watcher writes text");
        line.trim_end().to_owned()
    }
}

impl Drop for Watcher {
    /// Returns when the server has ended and its folder is gone.
    fn drop(&mut self) {
        // Also if a thread panicked while it asked: this closes the pipe, nothing else.
        match self.pipes.get_mut() {
            Ok(pipes) => drop(pipes.take()),
            Err(poisoned) => drop(poisoned.into_inner().take()),
        }
        // Whatever it ended with, there is nobody left to tell.
        let _ = self.child.wait();
    }
}
