//! Every input that is kept, through the same functions, without a fuzzer.

use std::path::{Path, PathBuf};

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    files.sort();
    files
}

#[test]
fn every_kept_input_keeps_every_promise() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (name, target) in tollgate_fuzz::TARGETS {
        let mut files = files_in(&root.join("seeds").join(name));
        assert!(!files.is_empty(), "{name} has no seeds");
        files.extend(files_in(&root.join("corpus").join(name)));
        files.extend(files_in(&root.join("regressions").join(name)));
        for file in &files {
            let input = std::fs::read(file).expect("a readable input");
            let outcome = std::panic::catch_unwind(|| target(&input));
            assert!(outcome.is_ok(), "{name} breaks on {}", file.display());
        }
        println!("{name}: {} inputs", files.len());
    }
}

#[test]
fn every_target_has_its_binary_and_every_binary_its_target() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let stem = |file: &PathBuf| file.file_stem().expect("a name").to_string_lossy().into_owned();
    let binaries: Vec<_> = files_in(&root.join("fuzz_targets")).iter().map(stem).collect();
    let targets: Vec<_> = tollgate_fuzz::TARGETS.map(|(name, _)| name.to_owned()).into();
    assert_eq!(binaries, targets);
}
