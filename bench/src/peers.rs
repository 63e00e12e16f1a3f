//! Programs the bench runs but does not contain: found, or made once.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::report;

pub(crate) const THROTTLECRAB_VERSION: &str = "0.4.40";
pub(crate) const FLEXIBLE_VERSION: &str = "11.4.0";
const PG_VERSION: &str = "8.23.1";

/// The load generator, from Debian's package.
pub(crate) fn wrk() -> Result<PathBuf> {
    let path = PathBuf::from("/usr/bin/wrk");
    if !path.exists() {
        install_package("wrk")?;
    }
    Ok(path)
}

/// Our own server, built as it is now.
pub(crate) fn tollgate() -> Result<PathBuf> {
    eprintln!("building the server");
    // Beside this program, wherever that was built: TARGET/release/bench.
    let own = std::env::current_exe()?;
    let target = own.ancestors().nth(2).context("this program stands in a target folder")?;
    let status = Command::new("cargo")
        .args(["build", "--release", "--quiet", "--target-dir"])
        .arg(target)
        .current_dir(report::workspace())
        .status()?;
    ensure!(status.success(), "the server does not build");
    let path = target.join("release/tollgate");
    ensure!(path.exists(), "{} is not there after building it", path.display());
    Ok(path)
}

/// Debian's Redis.
pub(crate) fn redis() -> Result<PathBuf> {
    let path = PathBuf::from("/usr/bin/redis-server");
    if !path.exists() {
        install_package("redis-server")?;
    }
    Ok(path)
}

/// From crates.io, as its authors locked it.
pub(crate) fn throttlecrab() -> Result<PathBuf> {
    let root = report::folder("peers")?;
    let path = root.join("bin/throttlecrab-server");
    if path.exists() {
        return Ok(path);
    }
    if !PathBuf::from("/usr/bin/protoc").exists() {
        install_package("protobuf-compiler")?;
    }
    eprintln!("building throttlecrab-server {THROTTLECRAB_VERSION}, once");
    let status = Command::new("cargo")
        .args(["install", "throttlecrab-server", "--locked", "--quiet"])
        .args(["--version", THROTTLECRAB_VERSION])
        .arg("--root")
        .arg(&root)
        .status()?;
    ensure!(status.success(), "throttlecrab-server {THROTTLECRAB_VERSION} does not build here");
    Ok(path)
}

/// npm's rate-limiter-flexible and its driver: the folder they are in.
pub(crate) fn flexible() -> Result<PathBuf> {
    let folder = report::folder("peers/node")?;
    if !folder.join("node_modules/rate-limiter-flexible").exists() {
        eprintln!("installing rate-limiter-flexible {FLEXIBLE_VERSION}, once");
        let status = Command::new("npm")
            .args(["install", "--silent", "--no-save", "--prefix", "."])
            .arg(format!("rate-limiter-flexible@{FLEXIBLE_VERSION}"))
            .arg(format!("pg@{PG_VERSION}"))
            .current_dir(&folder)
            .status()
            .context("npm is needed for rate-limiter-flexible")?;
        ensure!(status.success(), "rate-limiter-flexible {FLEXIBLE_VERSION} is not installed");
    }
    Ok(folder)
}

fn install_package(name: &str) -> Result<()> {
    let status = Command::new("apt-get")
        .args(["install", "-y", name])
        .stdout(Stdio::null())
        .status()
        .with_context(|| format!("{name} is needed: install it and try again"))?;
    ensure!(status.success(), "{name} is needed: install it and try again");
    Ok(())
}
