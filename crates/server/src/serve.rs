//! `tollgate serve`: opens the store, puts policies in force, and answers until told to stop.

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tollgate::{Compiled, Error, FilePolicy, Policy, StoreErrorKind, Tollgate};
use tollgate_mail::Mail;

use crate::alerts::Watching;
use crate::auth::Access;
use crate::body::{BodyLimits, LargeBodies};
use crate::config::Config;
use crate::exit::Failure;
use crate::forward_auth::ForwardAuth;
use crate::http::Readiness;
use crate::listener::{self, ListenerLimits};
use crate::metrics::Metrics;
use crate::open_files;
use crate::state::App;
use crate::threads::Threads;
use crate::tls::{Tls, TlsFiles};

/// Arguments of `serve`; they go before the file.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// Where counts are kept: sqlite:PATH (default: sqlite:tollgate.db), memory: or
    /// postgres://USER@HOST/DATABASE
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// The address to listen on (default: 127.0.0.1:8080)
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// A TOML file with settings and policies
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Speak TLS with this certificate chain (PEM); read again on SIGHUP
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
}

/// What to do if another process has the store's file open.
const IF_IN_USE: &str = "stop that one, or start this one on another file with --store sqlite:PATH";
const KEEP_UP_PAUSE: Duration = Duration::from_secs(1);

/// The policy made at the first start, so that there is something to try.
const DEFAULT_POLICY: &str = r#"
limits = [{ name = "window", max = 100, per = "PT4S" }]
schedule = { spread = "even", horizon = "365d" }
"#;

pub(crate) fn run(args: ServeArgs) -> Result<(), Failure> {
    let (mut config, policies) = match &args.config {
        None => (Config::default(), Vec::new()),
        Some(path) => Config::read(path).map_err(|error| Failure::bad_input(error.to_string()))?,
    };
    let forward_auth = ForwardAuth::new(std::mem::take(&mut config.gate)).map_err(|why| {
        let file = args.config.as_deref().unwrap_or(Path::new("")).display();
        Failure::bad_input(format!("{file}: {why}"))
    })?;
    let server = &mut config.server;
    let tls = TlsFiles::of(
        args.tls_cert.or(server.tls_cert.take()),
        args.tls_key.or(server.tls_key.take()),
    )?;
    let tls = tls.map(Tls::open).transpose()?.map(Arc::new);
    let store = args.store.unwrap_or_else(|| config.store.url.clone());
    let listen = args.listen.unwrap_or_else(|| config.server.listen.clone());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::unreachable(format!("the runtime did not start: {error}")))?;
    runtime.block_on(serve(&config, tls, forward_auth, &policies, (&store, &listen)))
}

async fn serve(
    config: &Config,
    tls: Option<Arc<Tls>>,
    forward_auth: ForwardAuth,
    policies: &[Policy],
    (store, listen): (&str, &str),
) -> Result<(), Failure> {
    let mut stop_signals = StopSignals::watch()?;
    match &tls {
        Some(tls) => tls.reload_on_hangup()?,
        None => stop_signals.watch_hangup()?,
    }
    let admin_token = admin_token()?;
    let Some(gate) = stop_signals.unless_stopped(open(store, IF_IN_USE)).await? else {
        return Ok(());
    };
    let is_new = gate.is_new();
    let shown = tollgate::shown_url(store);
    let address = resolve(listen).await?;
    if !address.ip().is_loopback() && admin_token.is_none() && !gate.has_tokens() {
        return Err(exposed(address, store));
    }
    put_in_force(&gate, policies).await?;
    let opening =
        async { Ok(Mail::open(gate.clone(), store, config.mail.settings.clone()).await?) };
    let Some(mail) = stop_signals.unless_stopped(opening).await? else {
        gate.close();
        return Ok(());
    };
    let listener = bind(address).await?;
    let address = listener.local_addr().unwrap_or(address);
    let access = Access::new(gate.clone(), admin_token.as_deref(), address.ip().is_loopback());
    let shown = if is_new { format!("{shown} (new)") } else { shown };
    let scheme = if tls.is_some() { "https" } else { "http" };
    greet(&format!("{scheme}://{address}"), &shown, &gate, &access);
    let app = Arc::new(shared(config, access, forward_auth, &gate, &mail));
    let watching = Watching::start(&gate, &config.alerts, &app.metrics.alerts)?;
    let limits = ListenerLimits {
        max_connections: open_files::room_for_clients(config.server.max_connections.0),
        header_time: config.server.header_timeout.0,
        shutdown_time: config.server.shutdown_timeout.0,
    };
    let threads = Threads::start().map_err(|error| {
        Failure::unreachable(format!("the threads for connections did not start: {error}"))
    })?;
    let threads = threads.adopted_by(&gate);
    let keeping_up = tokio::spawn(keep_up(gate.clone()));
    let relay = mail.start();
    listener::serve(listener, app, limits, threads, tls, stop_signals.next()).await;
    watching.stop().await;
    keeping_up.abort();
    // Messages that are being sent at this moment end first: what came of them is worth knowing.
    // Whoever is told to stop again does not wait for them.
    tokio::select! {
        () = relay.stop() => {}
        () = stop_signals.next() => note!("stopping at once: mail that was being sent may be sent again"),
    }
    mail.close();
    // Everything decided is in the file before the process ends.
    gate.close();
    say!("stopped");
    Ok(())
}

/// What all requests share.
fn shared(
    config: &Config,
    access: Access,
    forward_auth: ForwardAuth,
    gate: &Tollgate,
    mail: &Mail,
) -> App {
    let body_limits = |max_bytes| BodyLimits { max_bytes, read_time: config.server.body_timeout.0 };
    App {
        access,
        forward_auth,
        metrics: Metrics::new(gate.clone()),
        body_limits: body_limits(config.server.max_body_bytes.0),
        batch_body_limits: body_limits(config.server.max_batch_body_bytes.0),
        mail_body_limits: BodyLimits {
            max_bytes: config.mail.max_body_bytes,
            read_time: config.mail.body_timeout,
        },
        large_bodies: large_bodies(config),
        readiness: Readiness::default(),
        gate: gate.clone(),
        mail: mail.clone(),
    }
}

/// What other instances change, a token revoked or a route added, is in force here soon, also if nobody asks anything.
async fn keep_up(gate: Tollgate) {
    loop {
        tokio::time::sleep(KEEP_UP_PAUSE).await;
        if let Err(error) = gate.refresh().await {
            tracing::debug!(%error, "policies and tokens as they were when the store last answered");
        }
    }
}

/// The largest body alone always has room, whatever was configured.
fn large_bodies(config: &Config) -> LargeBodies {
    let largest = config.mail.max_body_bytes.max(config.server.max_batch_body_bytes.0);
    let room = config.server.max_large_bodies_bytes.0.max(largest);
    LargeBodies::new(room, config.server.max_body_bytes.0)
}

fn admin_token() -> Result<Option<String>, Failure> {
    let token = std::env::var("TOLLGATE_ADMIN_TOKEN").ok().filter(|token| !token.is_empty());
    // No header can carry another.
    match token {
        Some(token)
            if token.trim() != token || token.contains(|c: char| !(' '..='~').contains(&c)) =>
        {
            Err(Failure::bad_input(
                "TOLLGATE_ADMIN_TOKEN may hold only letters, digits and signs of ASCII, and must not \
                 begin or end with a space or the end of a line",
            ))
        }
        token => Ok(token),
    }
}

/// Everybody could come in.
fn exposed(address: SocketAddr, store: &str) -> Failure {
    // A store in memory has no token before it is served.
    let recipe = match store {
        "memory:" => String::new(),
        _ => {
            let shown = tollgate::shown_url(store);
            format!("run `tollgate token create --scope admin --store {shown}` first, or ")
        }
    };
    Failure::bad_input(format!(
        "{address} can be reached from other machines, and there is no token yet: set \
         TOLLGATE_ADMIN_TOKEN, or {recipe}listen on 127.0.0.1"
    ))
}

async fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        let other = SocketAddr::new(address.ip(), address.port().saturating_add(1));
        Failure::unreachable(format!(
            "{address} cannot be listened on ({error}): stop what listens there, or choose \
             another such as --listen {other}"
        ))
    })
}

/// Opens a store, or says what to look at.
pub(crate) async fn open(store: &str, if_in_use: &str) -> Result<Tollgate, Failure> {
    Tollgate::open(store).await.map_err(|error| {
        let kind = match &error {
            Error::Store(error) => Some(error.kind()),
            _ => None,
        };
        let failure = Failure::from(error);
        match (kind, store.starts_with("postgres")) {
            (Some(_), true) => {
                let shown = tollgate::shown_url(store);
                failure.context(format!("check that it runs, and that --store {shown} is right"))
            }
            (Some(StoreErrorKind::Contended), false) => failure.context(if_in_use),
            _ => failure,
        }
    })
}

async fn resolve(listen: &str) -> Result<SocketAddr, Failure> {
    let mut found = tokio::net::lookup_host(listen).await.map_err(|error| {
        Failure::bad_input(format!(
            "{listen:?} is not an address to listen on ({error}); try 127.0.0.1:8080"
        ))
    })?;
    found.next().ok_or_else(|| Failure::bad_input(format!("{listen:?} names no address")))
}

async fn put_in_force(gate: &Tollgate, policies: &[Policy]) -> Result<(), Error> {
    if gate.is_new() && !policies.iter().any(|policy| policy.name() == "default") {
        gate.apply(&Policy::from_toml("default", DEFAULT_POLICY)?, "first start").await?;
    }
    for policy in policies {
        let name = policy.name();
        match gate.apply_from_file(policy).await? {
            FilePolicy::Applied(applied) => {
                say!("policy {name} is now version {}", applied.policy.version());
            }
            FilePolicy::Unchanged => {
                let in_force = gate.policy(name);
                if !in_force.is_ok_and(|now| now.policy().document() == policy.document()) {
                    say!(
                        "policy {name} is not in force as the file has it: it was changed or deleted \
                         since; `tollgate policy apply FILE` brings it back"
                    );
                }
            }
        }
    }
    Ok(())
}

/// Names of policies in the greeting; `tollgate policy list` shows all.
const MAX_GREETED: usize = 10;

/// Says what was done, and what to do next.
fn greet(url: &str, store: &str, gate: &Tollgate, access: &Access) {
    let policies = gate.policies();
    let mut names: Vec<_> =
        policies.iter().take(MAX_GREETED).map(|policy| policy.policy().name().to_owned()).collect();
    if policies.len() > MAX_GREETED {
        names.push(format!("and {} more", policies.len() - MAX_GREETED));
    }
    say!("tollgate listens on {url}, store {store}, policies: {}", names.join(", "));
    if access.is_open() {
        say!("open to everybody on this machine: no token was made yet");
    } else {
        say!("a token is needed: put yours into TOLLGATE_TOKEN");
    }
    let token = if access.is_open() { "" } else { " -H \"X-API-Token: $TOLLGATE_TOKEN\"" };
    // One that needs no attribute, so that the line works as it is.
    let needs_nothing =
        |policy: &Arc<Compiled>| policy.policy().limits().iter().all(|limit| limit.by.is_empty());
    match policies.iter().find(|policy| needs_nothing(policy)) {
        Some(policy) => {
            let body = format!("{{\"policy\":\"{}\",\"subject\":{{}}}}", policy.policy().name());
            say!("try a check:\n\ncurl -i {url}/api/v1/check{token} -d '{body}'\n");
        }
        None => say!("see what it can do:\n\ncurl {url}/openapi.json\n"),
    }
}

/// Ctrl-C, and what service managers send. They are watched from the start on, not only while somebody waits for
/// one: a stop that comes during the start must be in good order too, and a second one is not lost.
struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    /// If that is a terminal being closed.
    hangup: Option<Signal>,
}

impl StopSignals {
    fn watch() -> Result<Self, Failure> {
        Ok(Self {
            interrupt: watch(SignalKind::interrupt())?,
            terminate: watch(SignalKind::terminate())?,
            hangup: None,
        })
    }

    /// A terminal that is closed stops the server too. Elsewhere it is an order to reload, from somebody who does not
    /// know that there is nothing to: it must not stop anything.
    fn watch_hangup(&mut self) -> Result<(), Failure> {
        let hangup = watch(SignalKind::hangup())?;
        self.hangup = std::io::stdin().is_terminal().then_some(hangup);
        Ok(())
    }

    /// What `starting` comes to; `None` if the server is told to stop before.
    async fn unless_stopped<T>(
        &mut self,
        starting: impl Future<Output = Result<T, Failure>>,
    ) -> Result<Option<T>, Failure> {
        tokio::select! {
            started = starting => started.map(Some),
            () = self.next() => {
                note!("stopped before it had started");
                Ok(None)
            }
        }
    }

    async fn next(&mut self) {
        let hung_up = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = hung_up => {}
        }
    }
}

pub(crate) fn watch(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind)
        .map_err(|error| Failure::unreachable(format!("signals cannot be watched: {error}")))
}
