//! The stores behind one face, and which of them a URL names.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tollgate_core::store::{
    Ask, Base, Catalogue, Checked, Clock, Decided, Once, OnceKey, Override, OwnedAsk,
    PolicyVersion, Receipt, Record, Recount, Refunded, ScheduleAsk, Slot, SlotAnswer, SlotQuery,
    StatsReading, StoreError, StoreErrorKind, Token, WindowFill,
};
use tollgate_core::{Decision, Instant, Span};
use tollgate_store_embedded::{Embedded, SystemClock};
use tollgate_store_postgres::{BadUrl, Postgres, Settings};

use crate::error::Error;

/// Much longer than a lane takes to connect again.
const POSTGRES_QUIET: Duration = Duration::from_secs(10);

/// Whatever applies decisions atomically.
#[derive(Debug)]
pub(crate) enum Store {
    Embedded(Embedded),
    Postgres(Box<Postgres>),
}

/// `memory:`, `sqlite:PATH` or `postgres://…`. Without a clock, each store has its own.
pub(crate) async fn open(url: &str, clock: Option<Arc<dyn Clock>>) -> Result<Store, Error> {
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        let settings = Settings::parse(url).map_err(|BadUrl(why)| Error::BadStoreUrl(why))?;
        let store = Postgres::open(settings, clock).await?;
        return Ok(Store::Postgres(Box::new(store)));
    }
    let clock = clock.unwrap_or_else(|| Arc::new(SystemClock));
    if url == "memory:" {
        return Ok(Store::Embedded(Embedded::memory(clock)?));
    }
    match sqlite_path(url) {
        Some("") => {
            Err(Error::BadStoreUrl("sqlite: needs a path, such as sqlite:tollgate.db".into()))
        }
        Some(":memory:") => {
            let why = "a store in memory is memory:, not sqlite::memory:";
            Err(Error::BadStoreUrl(why.into()))
        }
        // SQLite's own URLs have them; as part of a file's name, a new store would be made.
        Some(path) if path.contains('?') => {
            let why = "sqlite: takes a path and no settings; a path has no question mark";
            Err(Error::BadStoreUrl(why.into()))
        }
        Some(path) => Ok(Store::Embedded(Embedded::open(path, clock)?)),
        None => {
            let meant = match url {
                "" => String::new(),
                "memory" => "; did you mean memory:?".into(),
                url if url.contains(':') => String::new(),
                path if path.contains('=') => String::new(),
                path => format!("; did you mean sqlite:{path}?"),
            };
            Err(Error::BadStoreUrl(format!(
                "{:?} is not a store: use sqlite:PATH, memory: or postgres://USER@HOST/DATABASE{meant}",
                shown_url(url)
            )))
        }
    }
}

/// The file that a store's URL names, if it names one. `sqlite://PATH` is `sqlite:PATH`: a path in
/// the root folder is what nobody means by it, and `sqlite:///PATH` still begins there.
pub fn sqlite_path(url: &str) -> Option<&str> {
    let path = url.strip_prefix("sqlite:")?;
    Some(path.strip_prefix("//").unwrap_or(path))
}

/// On PostgreSQL, in a simulated world.
#[cfg(feature = "simulation")]
pub(crate) async fn open_in(
    url: &str,
    world: Arc<dyn tollgate_store_postgres::World>,
) -> Result<Store, Error> {
    let settings = Settings::parse(url).map_err(|BadUrl(why)| Error::BadStoreUrl(why))?;
    let store = Postgres::open_in(settings, world).await?;
    Ok(Store::Postgres(Box::new(store)))
}

/// What is no URL may still hold a password: that of `postgres:USER:PASSWORD@HOST` or of
/// `host=HOST password=PASSWORD`.
fn shown_unlike_url(text: &str) -> String {
    let without_user = match (text.find(':'), text.rfind('@')) {
        (Some(colon), Some(at)) if colon < at => format!("{}{}", &text[..=colon], &text[at..]),
        _ => text.to_owned(),
    };
    match without_user.to_lowercase().find("password") {
        // Lower case can be longer than what it was; then all is left out that may be it.
        Some(start) => format!("{}password=…", without_user.get(..start).unwrap_or_default()),
        None => without_user,
    }
}

/// A store's URL as it may be shown: without what only its owner may know.
pub fn shown_url(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return shown_unlike_url(url) };
    let authority = rest.split_once('?').map_or(rest, |(before, _)| before);
    let user_end = match authority.rfind('@') {
        // A password may hold a `?` of its own: then its end is the last `@` of all.
        None if authority.contains(':') => rest.rfind('@'),
        end => end,
    };
    let (user, rest) = user_end.map_or(("", rest), |end| rest.split_at(end));
    let user = user.split_once(':').map_or(user, |(user, _)| user);
    let (host, query) =
        rest.split_once('?').map_or((rest, None), |(host, query)| (host, Some(query)));
    let query = query.map(|query| {
        let pairs = query.split('&').filter(|pair| !pair.to_lowercase().starts_with("password"));
        format!("?{}", pairs.collect::<Vec<_>>().join("&"))
    });
    format!("{scheme}://{user}{host}{}", query.filter(|query| query != "?").unwrap_or_default())
}

/// Calls the same method of whichever store it is.
macro_rules! each {
    ($store:expr, $one:ident => $call:expr) => {
        match $store {
            Store::Embedded($one) => $call,
            Store::Postgres($one) => $call,
        }
    };
}

impl Store {
    /// Whether other instances may change what this one has read.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, Self::Postgres(_))
    }

    /// By when a check, a refund or a question about the epoch is answered, if the store is not in
    /// this process. More time have: slots that are asked for together, up to 5 s; the catalogue,
    /// listings and changes, 5 s; a recount of slots, a minute.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        match self {
            Self::Embedded(_) => None,
            Self::Postgres(store) => Some(store.deadline()),
        }
    }

    /// How long there must be no error before an answer means that the store is back. A file
    /// answers as a whole; of a database, one connection may be down while others answer.
    pub(crate) fn quiet(&self) -> Duration {
        match self {
            Self::Embedded(_) => Duration::ZERO,
            Self::Postgres(_) => POSTGRES_QUIET,
        }
    }

    pub(crate) async fn check(&self, ask: &Ask<'_>) -> Result<Checked<Decided>, StoreError> {
        match self {
            Self::Embedded(store) => store.check(ask).await.map(Checked::Decided),
            Self::Postgres(store) => store.check(ask).await,
        }
    }

    /// `None`: this store cannot be asked without its runtime.
    #[inline]
    pub(crate) fn check_blocking(
        &self,
        ask: &Ask<'_>,
        decision: &mut Decision,
    ) -> Option<Result<(), StoreError>> {
        match self {
            Self::Embedded(store) => Some(store.check_blocking(ask, decision)),
            Self::Postgres(_) => None,
        }
    }

    pub(crate) fn adopt_runtime(&self, runtime: &Handle) {
        match self {
            Self::Postgres(store) => store.adopt_runtime(runtime),
            // It answers on the caller's thread as it is.
            Self::Embedded(_) => {}
        }
    }

    /// Waits for `future` on a thread that no runtime runs on.
    pub(crate) fn block_on<T>(
        &self,
        future: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let runtime = match self {
            Self::Postgres(store) if Handle::try_current().is_err() => store.runtime(),
            _ => {
                let message = "inside a runtime this store cannot be waited for: use check";
                return Err(StoreError::new(StoreErrorKind::Unavailable, message).into());
            }
        };
        runtime.block_on(future)
    }

    pub(crate) async fn check_once(
        &self,
        once: OnceKey,
        ask: OwnedAsk,
        body: impl FnOnce(&Decided) -> Vec<u8> + Send + 'static,
    ) -> Result<Checked<Once<Decided>>, StoreError> {
        match self {
            Self::Embedded(store) => store.check_once(once, ask, body).await.map(Checked::Decided),
            Self::Postgres(store) => store.check_once(once, ask, body).await,
        }
    }

    pub(crate) async fn find_once(&self, once: OnceKey) -> Result<Option<Record>, StoreError> {
        each!(self, store => store.find_once(once).await)
    }

    pub(crate) async fn refund(&self, receipt: Receipt) -> Result<Refunded, StoreError> {
        each!(self, store => store.refund(receipt).await)
    }

    pub(crate) async fn refund_once(
        &self,
        once: OnceKey,
        receipt: Receipt,
        body: impl FnOnce(Refunded) -> Vec<u8> + Send + 'static,
    ) -> Result<Once<Refunded>, StoreError> {
        each!(self, store => store.refund_once(once, receipt, body).await)
    }

    pub(crate) async fn catalogue(&self) -> Result<Catalogue, StoreError> {
        each!(self, store => store.catalogue().await)
    }

    /// Grows with every change of the catalogue; always 0 where only this process can change it.
    pub(crate) async fn epoch(&self) -> Result<u64, StoreError> {
        match self {
            Self::Embedded(_) => Ok(0),
            Self::Postgres(store) => store.epoch().await,
        }
    }

    pub(crate) async fn put_policy(
        &self,
        name: String,
        document: Option<String>,
        created_by: String,
        base: Base,
    ) -> Result<Option<(PolicyVersion, bool)>, StoreError> {
        each!(self, store => store.put_policy(name, document, created_by, base).await)
    }

    pub(crate) async fn policy_versions(
        &self,
        name: String,
    ) -> Result<Vec<PolicyVersion>, StoreError> {
        each!(self, store => store.policy_versions(name).await)
    }

    pub(crate) async fn file_policy(&self, name: String) -> Result<Option<String>, StoreError> {
        each!(self, store => store.file_policy(name).await)
    }

    pub(crate) async fn put_file_policy(
        &self,
        name: String,
        document: String,
    ) -> Result<(), StoreError> {
        each!(self, store => store.put_file_policy(name, document).await)
    }

    pub(crate) async fn put_override(&self, change: Override) -> Result<(), StoreError> {
        each!(self, store => store.put_override(change).await)
    }

    pub(crate) async fn delete_override(
        &self,
        policy: String,
        limit: String,
        values: Vec<u8>,
    ) -> Result<bool, StoreError> {
        each!(self, store => store.delete_override(policy, limit, values).await)
    }

    pub(crate) async fn put_token(&self, token: Token) -> Result<(), StoreError> {
        each!(self, store => store.put_token(token).await)
    }

    pub(crate) async fn delete_token(&self, hash: Vec<u8>) -> Result<bool, StoreError> {
        each!(self, store => store.delete_token(hash).await)
    }

    pub(crate) async fn assign_slots(
        &self,
        ask: ScheduleAsk,
    ) -> Result<Checked<Vec<SlotAnswer>>, StoreError> {
        match self {
            Self::Embedded(store) => store.assign_slots(ask).await.map(Checked::Decided),
            Self::Postgres(store) => store.assign_slots(ask).await,
        }
    }

    pub(crate) async fn slots_of(&self, event_ids: Vec<String>) -> Result<Vec<Slot>, StoreError> {
        each!(self, store => store.slots_of(event_ids).await)
    }

    pub(crate) async fn slot(&self, event_id: String) -> Result<Option<Slot>, StoreError> {
        each!(self, store => store.slot(event_id).await)
    }

    pub(crate) async fn cancel_slot(&self, event_id: String) -> Result<Option<Slot>, StoreError> {
        each!(self, store => store.cancel_slot(event_id).await)
    }

    pub(crate) async fn slots(&self, query: SlotQuery) -> Result<Vec<Slot>, StoreError> {
        each!(self, store => store.slots(query).await)
    }

    pub(crate) async fn slot_windows(
        &self,
        policy: String,
        per: Span,
        first: i64,
        last: i64,
        limit: u32,
    ) -> Result<Vec<WindowFill>, StoreError> {
        each!(self, store => store.slot_windows(policy, per, first, last, limit).await)
    }

    pub(crate) async fn recount_slots(&self, policy: String) -> Result<Recount, StoreError> {
        each!(self, store => store.recount_slots(policy).await)
    }

    pub(crate) async fn ping(&self) -> Result<(), StoreError> {
        each!(self, store => store.ping().await)
    }

    pub(crate) fn now(&self) -> Instant {
        each!(self, store => store.now())
    }

    pub(crate) fn stats(&self) -> StatsReading {
        each!(self, store => store.stats())
    }

    pub(crate) async fn sweep(&self) -> Result<(), StoreError> {
        match self {
            Self::Embedded(store) => {
                store.sweep();
                Ok(())
            }
            Self::Postgres(store) => store.sweep().await,
        }
    }

    pub(crate) fn close(&self) {
        each!(self, store => store.close());
    }
}

#[cfg(test)]
mod tests {
    use super::{open, shown_url, sqlite_path};

    #[test]
    fn a_shown_url_has_no_password() {
        for (url, shown) in [
            ("sqlite:tollgate.db", "sqlite:tollgate.db"),
            ("postgres://ada:s3cret@db/limits", "postgres://ada@db/limits"),
            ("postgres://ada:p@ss@db:5432/limits?lanes=2", "postgres://ada@db:5432/limits?lanes=2"),
            ("postgres://ada:s3?ret@db/limits?lanes=2", "postgres://ada@db/limits?lanes=2"),
            ("postgres://db/limits?password=s3cret", "postgres://db/limits"),
            ("postgres://db/x?application_name=a@b", "postgres://db/x?application_name=a@b"),
            ("postgres://db/x?user=a&password=s3cret&lanes=2", "postgres://db/x?user=a&lanes=2"),
        ] {
            assert_eq!(shown_url(url), shown);
        }
    }

    #[test]
    fn a_file_may_be_named_with_slashes_and_without() {
        for (url, path) in [
            ("sqlite:counts.db", Some("counts.db")),
            ("sqlite://counts.db", Some("counts.db")),
            ("sqlite:/var/lib/counts.db", Some("/var/lib/counts.db")),
            ("sqlite:///var/lib/counts.db", Some("/var/lib/counts.db")),
            ("sqlite:", Some("")),
            ("sqlite://", Some("")),
            ("memory:", None),
        ] {
            assert_eq!(sqlite_path(url), path, "{url}");
        }
    }

    #[tokio::test]
    async fn settings_behind_a_path_are_no_part_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}/counts.db?mode=ro", folder.path().display());
        let error = open(&url, None).await.unwrap_err();
        assert!(error.to_string().contains("no settings"), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was made");
    }
}
