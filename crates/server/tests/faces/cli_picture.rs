//! What `check` and `peek` draw, in a pipe and on a terminal.

use serde_json::json;

use crate::support::command::clean;
use crate::support::{Ended, FOREVER, Server, tollgate};

const TOLLGATE: &str = env!("CARGO_BIN_EXE_tollgate");

/// One limit of each algorithm, so long that nothing comes back during a test.
fn server() -> Server {
    let server = Server::memory();
    let limit = |name: &str, max: u64, algorithm: &str| {
        let per = if algorithm == "fixed" { FOREVER } else { "30d" };
        json!({ "name": name, "max": max, "per": per, "algorithm": algorithm })
    };
    server.policy(
        "p",
        &json!([
            limit("window", 4, "fixed"),
            limit("any", 10, "sliding"),
            limit("rate", 2, "bucket")
        ]),
    );
    server
}

/// The lines without their times, which differ from run to run.
fn timeless(text: &str) -> Vec<String> {
    let cut = |line: &str| line.split(" in ").next().unwrap_or_default().to_owned();
    text.lines().filter(|line| !line.starts_with("receipt ")).map(cut).collect()
}

/// On a terminal that `script` makes, so wide.
fn on_a_terminal(server: &Server, columns: u32, env: &[(&str, &str)]) -> String {
    let command = format!("stty rows 40 cols {columns}; exec {TOLLGATE} check p");
    let mut script = clean("script");
    script.args(["-qec", &command, "/dev/null"]).env("TOLLGATE_SERVER", server.url(""));
    script.env("TERM", "xterm").env_remove("NO_COLOR").envs(env.iter().copied());
    Ended::of(script).expect(0).out.replace('\r', "")
}

#[test]
fn a_pipe_gets_plain_lines_for_fixed_sliding_and_bucket() {
    let server = server();
    let drawn = tollgate(&server, &["check", "p"]).expect(0);
    let lines = timeless(&drawn.out);
    assert_eq!(lines[0], "allowed: policy p, cost 1");
    for (line, name, used, words) in [
        (&lines[1], "window  ", 4, "1 of 4 used, 3 remaining, all back"),
        (&lines[2], "any     ", 10, "1 of 10 used, 9 remaining, all back"),
        (&lines[3], "rate    ", 2, "1 of 2 used, 1 remaining, all back"),
    ] {
        let bar = line.strip_prefix(name).and_then(|rest| rest.strip_suffix(words));
        let bar = bar.unwrap_or_else(|| panic!("{line}")).trim_end();
        let full = bar.len().div_ceil(used);
        assert_eq!(bar, "#".repeat(full) + &".".repeat(bar.len() - full));
    }
    assert_eq!(lines.len(), 4, "{}", drawn.out);
    tollgate(&server, &["check", "p"]).expect(0);
    let refused = tollgate(&server, &["check", "p"]).expect(1);
    let lines = timeless(&refused.out);
    assert_eq!(lines[0], "refused: policy p, cost 1");
    assert!(lines[1].ends_with("2 of 4 used, 2 remaining, all back"), "{refused:?}");
    assert!(lines[3].ends_with("2 of 2 used, 0 remaining, room for 1"), "{refused:?}");
    assert!(!lines[3].contains('.') && lines[4].starts_with("try again at 20"), "{refused:?}");
    let stands = tollgate(&server, &["peek", "p", "--cost", "3"]).expect(1);
    assert!(stands.out.contains("2 of 2 used, 0 remaining, 3 can never fit"), "{stands:?}");
}

#[test]
fn a_terminal_gets_blocks_colours_and_as_much_as_fits() {
    let wide = on_a_terminal(&server(), 120, &[]);
    assert!(wide.contains("window  \x1b[32m████████░"), "{wide}");
    assert!(wide.contains("1 of 4 used, 3 remaining, all back in "), "{wide}");
    let narrow = on_a_terminal(&server(), 50, &[]);
    assert!(
        narrow.contains("\x1b[32m████") && narrow.contains("░\x1b[0m  1/4, back in "),
        "{narrow}"
    );
    let tiny = on_a_terminal(&server(), 20, &[]);
    assert!(tiny.contains("window  1/4, back in "), "{tiny}");
}

#[test]
fn no_colour_where_none_is_wanted_and_no_blocks_on_a_dumb_terminal() {
    let plain = on_a_terminal(&server(), 120, &[("NO_COLOR", "1")]);
    assert!(plain.contains("window  ████████░") && !plain.contains('\x1b'), "{plain:?}");
    let dumb = on_a_terminal(&server(), 120, &[("TERM", "dumb")]);
    assert!(dumb.contains("window  ######") && !dumb.contains('\x1b'), "{dumb:?}");
    let empty = on_a_terminal(&server(), 120, &[("NO_COLOR", "")]);
    assert!(empty.contains("\x1b[32m"), "an empty NO_COLOR says nothing: {empty:?}");
}
