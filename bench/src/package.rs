//! How large the npm package is for those who bundle it.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::Pace;
use crate::report::{self, Report, Table};
use crate::statistics::number;

/// Bundles an entry as an application would, and says how many bytes go over the wire.
const MEASURE: &str = r#"
const { createRequire } = await import("node:module");
const { gzipSync } = await import("node:zlib");
const { build } = createRequire(`${process.cwd()}/`)("esbuild");
const options = { bundle: true, minify: true, format: "esm", target: "es2022", write: false };
const made = await build({ ...options, entryPoints: ["src/index.ts"] });
const contents = made.outputFiles[0].contents;
console.log(JSON.stringify([contents.length, gzipSync(contents, { level: 9 }).length]));
"#;

pub(crate) fn run(pace: Pace) -> Result<()> {
    let mut report = Report::new("package", "The npm package", pace)?;
    let folder = report::workspace().join("clients/typescript");
    if !folder.join("node_modules/esbuild").exists() {
        eprintln!("installing esbuild, once");
        let status = Command::new("npm")
            .args(["ci", "--silent", "--no-audit", "--no-fund"])
            .current_dir(&folder)
            .status()
            .context("npm is needed to bundle the package")?;
        ensure!(status.success(), "`npm ci` in clients/typescript failed");
    }
    let output = Command::new("node")
        .args(["--input-type=module", "--eval", MEASURE])
        .current_dir(&folder)
        .output()
        .context("node is needed to bundle the package")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the package was not bundled: {complaint}");
    let [minified, gzipped]: [f64; 2] = serde_json::from_slice(&output.stdout)?;
    let mut table = Table::new("Everything but the React parts", &["", "bytes"]);
    table.row(["minified".into(), number(minified)]);
    table.row(["and gzipped".into(), number(gzipped)]);
    report.table(table);
    report.measured("package.bytes", gzipped, String::new());
    report.finish(json!({ "minified_bytes": minified, "gzipped_bytes": gzipped }))
}
