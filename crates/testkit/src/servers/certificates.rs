//! A certificate authority for one server, and the server's certificate, made by `openssl`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{account, programs};

pub(super) const AUTHORITY: &str = "ca.crt";
pub(super) const CERTIFICATE: &str = "server.crt";
pub(super) const KEY: &str = "server.key";

const EXTENSIONS: &str = "server.ext";
const DAYS: &str = "2";

/// Where the files are, for a server that is not one of ours.
#[derive(Clone, Debug)]
pub struct Certificates {
    pub authority: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Certificates {
    /// Makes a new authority and a certificate for `localhost` and `127.0.0.1` in this folder,
    /// over what was there. If we are root the folder becomes somebody else's, as servers' are.
    pub fn make(folder: &Path) -> Self {
        account::give(folder);
        make(folder);
        let [authority, certificate, key] =
            [AUTHORITY, CERTIFICATE, KEY].map(|name| folder.join(name));
        Self { authority, certificate, key }
    }
}

/// Writes them into the folder. The certificate is for `localhost` and `127.0.0.1`.
pub(super) fn make(folder: &Path) {
    let openssl = |line: &str| {
        let mut command = account::command(&programs::openssl(), folder);
        account::run(command.args(line.split_whitespace()));
    };
    let new_key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    // Not openssl.cnf's: what the machine's says is not ours to rely on.
    account::write(&folder.join("openssl.cnf"), "[req]\ndistinguished_name = name\n[name]\n");
    account::write(
        &folder.join(EXTENSIONS),
        "basicConstraints = critical,CA:false\n\
         keyUsage = critical,digitalSignature\n\
         extendedKeyUsage = serverAuth\n\
         subjectAltName = DNS:localhost,IP:127.0.0.1\n",
    );
    openssl(&format!(
        "req -config openssl.cnf -x509 {new_key} -keyout ca.key -out {AUTHORITY} -days {DAYS} \
         -subj /CN=tollgate-test-ca -addext basicConstraints=critical,CA:true \
         -addext keyUsage=critical,keyCertSign"
    ));
    openssl(&format!(
        "req -config openssl.cnf {new_key} -keyout {KEY} -out server.csr -subj /CN=tollgate-test"
    ));
    openssl(&format!(
        "x509 -req -in server.csr -CA {AUTHORITY} -CAkey ca.key -set_serial 1 -days {DAYS} \
         -extfile {EXTENSIONS} -out {CERTIFICATE}"
    ));
    // PostgreSQL refuses a key that others may read.
    let owner_only = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(folder.join(KEY), owner_only).expect("openssl wrote the key");
}
