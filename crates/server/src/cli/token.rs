//! `token create|list|revoke`: at a running server, or in a store that is not in use.

use clap::Subcommand;
use serde_json::json;
use tollgate::{NewToken, Scope, Tollgate};

use super::client::{Remote, encode};
use super::show::{table, text};
use crate::exit::{Done, Failure};
use crate::serve::open;

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token; it is shown once
    Create {
        /// What it may do: admin or check
        #[arg(long, value_parser = scope)]
        scope: Scope,
        /// Noted in the audit of what it does (default: its scope)
        #[arg(long)]
        name: Option<String>,
        /// Write to this store itself: a file that no server uses, or a database
        #[arg(long, value_name = "URL")]
        store: Option<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// List the tokens in force by their ids and names
    List {
        #[command(flatten)]
        remote: Remote,
    },
    /// End a token
    Revoke {
        /// Its id, as `token list` shows it
        id: String,
        #[command(flatten)]
        remote: Remote,
    },
}

fn scope(text: &str) -> Result<Scope, String> {
    Scope::parse(text).ok_or_else(|| "must be admin or check".into())
}

pub(crate) fn run(command: &TokenCommand) -> Result<Done, Failure> {
    match command {
        TokenCommand::Create { scope, name, store, remote } => {
            create_token(*scope, name.as_deref(), store.as_deref(), remote)
        }
        TokenCommand::List { remote } => list(remote),
        TokenCommand::Revoke { id, remote } => {
            let done = remote.delete(&format!("/admin/tokens/{}", encode(id)))?.success()?;
            if remote.json {
                say!("{done}");
            } else {
                say!("token {id} is revoked");
            }
            Ok(Done::Ok)
        }
    }
}

fn list(remote: &Remote) -> Result<Done, Failure> {
    let found = remote.get("/admin/tokens")?.success()?;
    if remote.json {
        say!("{found}");
        return Ok(Done::Ok);
    }
    let mut table = table(["id", "scope", "name", "created"]);
    for token in found["tokens"].as_array().into_iter().flatten() {
        table.add_row(["id", "scope", "name", "created_at"].map(|name| text(&token[name])));
    }
    say!("{table}");
    Ok(Done::Ok)
}

fn create_token(
    scope: Scope,
    name: Option<&str>,
    store: Option<&str>,
    remote: &Remote,
) -> Result<Done, Failure> {
    let name = name.unwrap_or(scope.as_str());
    let NewToken { id, token } = match store {
        Some("memory:") => {
            return Err(Failure::bad_input(
                "a store in memory ends with this command, and the token with it: set \
                 TOLLGATE_ADMIN_TOKEN for a server on memory:",
            ));
        }
        Some(store) => create_in_store(store, name, scope)?,
        None => {
            let body = json!({ "scope": scope.as_str(), "name": name });
            let made = remote.post("/admin/tokens", &body)?.success()?;
            NewToken { id: text(&made["id"]), token: text(&made["token"]) }
        }
    };
    if remote.json {
        say!("{}", json!({ "id": id, "token": token, "scope": scope.as_str(), "name": name }));
    } else {
        say!("{token}");
        note!("this is shown once; keep it, and use it as TOLLGATE_TOKEN (its id is {id})");
    }
    crate::say::seen("the token")?;
    Ok(Done::Ok)
}

fn create_in_store(store: &str, name: &str, scope: Scope) -> Result<NewToken, Failure> {
    let if_in_use = "if that is a server, leave out --store and ask it with --server URL";
    with_store(store, if_in_use, async |gate| create(gate, name, scope).await)
}

async fn create(gate: &Tollgate, name: &str, scope: Scope) -> Result<NewToken, Failure> {
    if scope != Scope::Admin && !gate.has_token(Scope::Admin) {
        note!(
            "there is no token of scope admin here yet, and from now on a server asks for tokens: \
             make one by the same command, or give the server one in TOLLGATE_ADMIN_TOKEN"
        );
    }
    Ok(gate.create_token(name, scope).await?)
}

/// Opens a store for one command, and closes it.
pub(crate) fn with_store<T>(
    store: &str,
    if_in_use: &str,
    work: impl AsyncFnOnce(&Tollgate) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::unreachable(format!("the runtime did not start: {error}")))?;
    runtime.block_on(async {
        let gate = open(store, if_in_use).await?;
        let done = work(&gate).await;
        gate.close();
        done
    })
}
