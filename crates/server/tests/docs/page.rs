//! A page taken apart, and run.

use std::path::Path;

use crate::shell::Shell;

/// A fenced block.
struct Block {
    kind: String,
    text: String,
    /// Where it stands in the page.
    line: usize,
}

/// Runs `docs/NAME.md` with these variables.
pub(crate) fn run(name: &str, variables: &[(&str, &str)]) {
    run_after("", name, variables);
}

/// The same after some commands that the page does not have.
pub(crate) fn run_after(before: &str, name: &str, variables: &[(&str, &str)]) {
    let mut shell = Shell::start(variables);
    shell.run(before).unwrap_or_else(|failed| panic!("{failed}"));
    let (mut printed, mut ran) = (String::new(), 0);
    for block in blocks(&text_of(name)) {
        let place = format!("docs/{name}.md:{}", block.line);
        if let Some((first, rest)) = block.text.split_once('\n')
            && let Some(file) = first.strip_prefix("# file: ")
        {
            shell.write(file, rest);
        } else if block.kind == "sh" {
            printed = shell.run(&block.text).unwrap_or_else(|failed| panic!("{place}: {failed}"));
            ran += 1;
        } else if block.kind == "sql" {
            let psql = "psql -v ON_ERROR_STOP=1 \"$DATABASE_URL\"";
            let asked = shell.run(&format!("{psql} <<'SQL'\n{}SQL\n", block.text));
            printed = asked.unwrap_or_else(|failed| panic!("{place}: {failed}"));
        } else if block.kind == "text" {
            for wanted in block.text.lines().filter(|line| !line.trim().is_empty()) {
                let found = printed.lines().any(|line| is_like(line, wanted));
                assert!(found, "{place}: {wanted:?} is not in what was printed:\n{printed}");
            }
        }
    }
    assert!(ran > 0, "docs/{name}.md has nothing to run");
}

/// The only block of a kind that a page has.
pub(crate) fn block_of(name: &str, kind: &str) -> String {
    let mut found = blocks(&text_of(name)).into_iter().filter(|block| block.kind == kind);
    let block = found.next().unwrap_or_else(|| panic!("docs/{name}.md has no block of {kind}"));
    assert!(found.next().is_none(), "docs/{name}.md has two blocks of {kind}");
    block.text
}

fn text_of(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../docs/{name}.md"));
    std::fs::read_to_string(&path).unwrap()
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_inside = false;
    for (number, line) in text.lines().enumerate() {
        if let Some(kind) = line.strip_prefix("```") {
            is_inside = !is_inside;
            if is_inside {
                let (kind, line) = (kind.to_owned(), number + 1);
                blocks.push(Block { kind, text: String::new(), line });
            }
        } else if is_inside && let Some(block) = blocks.last_mut() {
            block.text.push_str(line);
            block.text.push('\n');
        }
    }
    assert!(!is_inside, "a block does not end");
    blocks
}

/// Whether `line` holds the parts of `wanted` in order.
fn is_like(line: &str, wanted: &str) -> bool {
    let mut rest = line;
    wanted.trim().split('…').map(str::trim).all(|part| match rest.split_once(part) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}
