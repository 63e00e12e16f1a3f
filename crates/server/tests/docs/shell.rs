//! A shell in a folder of its own, with a port of its own instead of 8080.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tempfile::TempDir;

pub(crate) struct Shell {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    home: TempDir,
    port: String,
}

/// Ends what one block prints, with the status of its last command.
const END: &str = "::end of block::";

impl Shell {
    pub(crate) fn start(variables: &[(&str, &str)]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        // A reader stands in the repository.
        let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
        std::os::unix::fs::symlink(examples, home.path().join("examples")).unwrap();
        let program = Path::new(env!("CARGO_BIN_EXE_tollgate")).parent().unwrap();
        let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
        let mut child = Command::new("bash")
            .args(["--noprofile", "--norc"])
            .current_dir(home.path())
            .env("PATH", path)
            .env("HOME", home.path())
            .env("TOLLGATE_SERVER", format!("http://127.0.0.1:{port}"))
            .env_remove("TOLLGATE_ADMIN_TOKEN")
            .env_remove("TOLLGATE_TOKEN")
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // With everything it starts, so that all of it can be ended.
            .process_group(0)
            .spawn()
            .expect("bash is needed to run the pages");
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let output = BufReader::new(output);
        Self { child, input, output, home, port: port.to_string() }
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.home.path().join(name), text.replace("8080", &self.port)).unwrap();
    }

    /// What the commands print; an error if one of them fails.
    pub(crate) fn run(&mut self, commands: &str) -> Result<String, String> {
        let mut commands = commands.replace("8080", &self.port);
        if commands.contains("tollgate serve") {
            let listen = format!("tollgate serve --listen 127.0.0.1:{}", self.port);
            commands = commands.replace("tollgate serve", &listen);
            // A reader types the next line later than this.
            commands.push_str(
                "for _ in $(seq 600); do curl -sf $TOLLGATE_SERVER/healthz >/dev/null && break; \
                 sleep 0.1; done; curl -sf $TOLLGATE_SERVER/healthz >/dev/null\n",
            );
        }
        self.write("block.sh", &commands);
        // In this shell, for variables and background jobs to last; the first failure ends it.
        writeln!(
            self.input,
            "exec 2>&1; set -eo pipefail; trap 'echo \"{END} $?\"' EXIT; . ./block.sh; trap - EXIT; \
             set +e; echo '{END} 0'"
        )
        .unwrap();
        let mut printed = String::new();
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).unwrap() == 0 {
                return Err(format!("the shell ended:\n{printed}"));
            }
            match line.trim_end().rsplit_once(END) {
                Some((before, status)) => {
                    printed.push_str(before);
                    return match status.trim() {
                        "0" => Ok(printed),
                        status => Err(format!("ends with {status}:\n{commands}\n{printed}")),
                    };
                }
                None => printed.push_str(&line),
            }
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let group = format!("-{}", self.child.id());
        let _ = Command::new("kill").args(["-9", "--", &group]).status();
        let _ = self.child.wait();
    }
}
