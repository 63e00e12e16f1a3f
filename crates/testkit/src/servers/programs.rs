//! Where the servers' programs are.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Names a folder with PostgreSQL's programs, before any that is found.
const CHOICE: &str = "TOLLGATE_TEST_POSTGRES_BIN";
/// Debian's: one folder per major version.
const VERSIONS: &str = "/usr/lib/postgresql";

/// One of the server's programs, all of one version.
pub(super) fn of_postgres(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    in_folder(FOLDER.get_or_init(postgres_folder), name)
}

/// One of the programs that ask a server. They serve any version, and who packs up a server to be
/// started by others often leaves them out.
pub(super) fn of_postgres_client(name: &str) -> PathBuf {
    let chosen = postgres_folder().join(name);
    if chosen.is_file() { chosen } else { in_folder(&found_postgres_folder(), name) }
}

fn in_folder(folder: &Path, name: &str) -> PathBuf {
    let program = folder.join(name);
    assert!(program.is_file(), "{} is missing: {}", program.display(), remedy("postgresql"));
    program
}

pub(super) fn pgbouncer() -> PathBuf {
    on_path("pgbouncer")
        .unwrap_or_else(|| panic!("pgbouncer is not on the PATH: {}", remedy("pgbouncer")))
}

pub(super) fn openssl() -> PathBuf {
    on_path("openssl")
        .unwrap_or_else(|| panic!("openssl is not on the PATH: {}", remedy("openssl")))
}

fn postgres_folder() -> PathBuf {
    std::env::var_os(CHOICE).map_or_else(found_postgres_folder, PathBuf::from)
}

fn found_postgres_folder() -> PathBuf {
    let found = highest_version().or_else(|| {
        let initdb = on_path("initdb")?;
        initdb.parent().map(Path::to_owned)
    });
    found.unwrap_or_else(|| {
        panic!(
            "PostgreSQL's programs are neither in {VERSIONS}/*/bin nor on the PATH, and {CHOICE} \
             does not say where they are: {}",
            remedy("postgresql")
        )
    })
}

fn highest_version() -> Option<PathBuf> {
    let versions = std::fs::read_dir(VERSIONS).ok()?.filter_map(|entry| {
        let path = entry.ok()?.path();
        let version: u32 = path.file_name()?.to_str()?.parse().ok()?;
        let folder = path.join("bin");
        // A client package alone has a folder too.
        folder.join("initdb").is_file().then_some((version, folder))
    });
    versions.max().map(|(_, folder)| folder)
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian keeps servers where an ordinary user's PATH does not look.
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    folders.map(|folder| folder.join(name)).find(|program| program.is_file())
}

fn remedy(package: &str) -> String {
    format!("run ./test, which installs what is missing, or `apt-get install {package}`")
}
