//! A transaction of whichever database: statements with their values in, rows out.
//!
//! What the relay does with its tables is written once, as async functions over [`Db`], in SQL
//! that both databases understand but for a few marks in brackets (see [`dialect`]). On SQLite no
//! statement ever waits, so the same functions run to their end on its own thread.

use std::borrow::Cow;

use parking_lot::Mutex;
use rusqlite::types::{ToSqlOutput, ValueRef};
use tollgate::Instant;

use super::postgres::Session;
use crate::error::MailError;

/// A transaction.
pub(super) enum Db<'a> {
    /// The connection of the thread that this runs on. The mutex is never waited for: it makes the
    /// reference one that futures may hold.
    Sqlite(&'a Mutex<rusqlite::Connection>),
    Postgres(&'a Session),
}

/// A value with its type, also when there is none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Value {
    Int(Option<i64>),
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
}

/// One row of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Row(pub(super) Vec<Value>);

/// Which database a statement is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dialect<'a> {
    Sqlite,
    /// In this schema.
    Postgres(&'a str),
}

impl Db<'_> {
    /// Runs one statement; its rows.
    pub(super) async fn rows(
        &self,
        sql: &'static str,
        values: &[Value],
    ) -> Result<Vec<Row>, MailError> {
        refuse_zeros(values)?;
        match self {
            Self::Sqlite(connection) => super::sqlite::rows(&connection.lock(), sql, values),
            Self::Postgres(session) => session.rows(sql, values).await,
        }
    }

    /// The first row, if any.
    pub(super) async fn row(
        &self,
        sql: &'static str,
        values: &[Value],
    ) -> Result<Option<Row>, MailError> {
        Ok(self.rows(sql, values).await?.into_iter().next())
    }

    /// Runs one statement many times, in order, without waiting in between; the first row of each.
    pub(super) async fn row_each(
        &self,
        sql: &'static str,
        values: &[Vec<Value>],
    ) -> Result<Vec<Option<Row>>, MailError> {
        match self {
            Self::Sqlite(connection) => {
                let connection = connection.lock();
                let first = |values: &Vec<Value>| {
                    Ok(super::sqlite::rows(&connection, sql, values)?.into_iter().next())
                };
                values.iter().map(first).collect()
            }
            Self::Postgres(session) => session.row_each(sql, values).await,
        }
    }

    /// How many rows it changed.
    pub(super) async fn change(
        &self,
        sql: &'static str,
        values: &[Value],
    ) -> Result<u64, MailError> {
        refuse_zeros(values)?;
        match self {
            Self::Sqlite(connection) => super::sqlite::change(&connection.lock(), sql, values),
            Self::Postgres(session) => session.change(sql, values).await,
        }
    }
}

/// PostgreSQL keeps no zero bytes in a text, so no database does.
fn refuse_zeros(values: &[Value]) -> Result<(), MailError> {
    // A list is JSON, in which a zero byte is spelled out.
    let listed = |text: &str| {
        let texts: Option<Vec<String>> = serde_json::from_str(text).ok();
        texts.is_some_and(|texts| texts.iter().any(|text| text.contains('\0')))
    };
    let has_zero = |value: &Value| {
        matches!(value, Value::Text(Some(text))
            if text.contains('\0') || (text.contains("\\u0000") && listed(text)))
    };
    if values.iter().any(has_zero) {
        return Err(MailError::invalid("the request", "must not hold a zero byte"));
    }
    Ok(())
}

/// The statement as one database understands it:
///
/// * `[skip locked]`, `[for update]`, `[stays]`: row locks, where there are other writers; the last
///   only keeps the row from being deleted;
/// * `[ints ?1]`, `[texts ?1]`: the elements of a JSON list;
/// * `[own ?1]`, `[share ?1]`: a lock by name until the transaction ends.
pub(super) fn dialect(sql: &str, dialect: Dialect<'_>) -> String {
    let mut written = String::with_capacity(sql.len() + 64);
    let mut rest = sql;
    while let Some((before, after)) = rest.split_once('[') {
        let Some((mark, after)) = after.split_once(']') else { break };
        written.push_str(before);
        let (word, value) = mark.split_once(" ?").unwrap_or((mark, ""));
        written.push_str(&match (word, dialect) {
            ("skip locked", Dialect::Postgres(_)) => Cow::from("for update skip locked"),
            ("for update", Dialect::Postgres(_)) => Cow::from(word),
            ("stays", Dialect::Postgres(_)) => Cow::from("for key share"),
            ("ints" | "texts", Dialect::Sqlite) => {
                Cow::from(format!("(select value from json_each(?{value}))"))
            }
            ("ints", Dialect::Postgres(_)) => Cow::from(format!(
                "(select value::bigint from json_array_elements_text(?{value}::json))"
            )),
            ("texts", Dialect::Postgres(_)) => {
                Cow::from(format!("(select json_array_elements_text(?{value}::json))"))
            }
            ("own", Dialect::Postgres(_)) => {
                Cow::from(format!("pg_advisory_xact_lock(hashtextextended(?{value}, 0))"))
            }
            ("share", Dialect::Postgres(_)) => {
                Cow::from(format!("pg_advisory_xact_lock_shared(hashtextextended(?{value}, 0))"))
            }
            ("own" | "share", Dialect::Sqlite) => Cow::from(format!("?{value}")),
            _ => Cow::from(""),
        });
        rest = after;
    }
    written.push_str(rest);
    match dialect {
        Dialect::Sqlite => written,
        Dialect::Postgres(schema) => {
            written.replace('?', "$").replace("mail_", &format!("\"{schema}\".mail_"))
        }
    }
}

/// Runs what never waits. For SQLite.
pub(super) fn run_now<T>(future: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => unreachable!("a statement of SQLite never waits"),
    }
}

impl Row {
    pub(super) fn opt_int(&self, column: usize) -> Option<i64> {
        match self.0.get(column) {
            Some(Value::Int(value)) => *value,
            _ => None,
        }
    }

    pub(super) fn int(&self, column: usize) -> i64 {
        self.opt_int(column).unwrap_or_default()
    }

    /// A count: never negative.
    pub(super) fn count(&self, column: usize) -> u64 {
        u64::try_from(self.int(column)).unwrap_or_default()
    }

    pub(super) fn small<T: TryFrom<i64> + Default>(&self, column: usize) -> T {
        T::try_from(self.int(column)).unwrap_or_default()
    }

    pub(super) fn opt_text(&self, column: usize) -> Option<String> {
        match self.0.get(column) {
            Some(Value::Text(value)) => value.clone(),
            _ => None,
        }
    }

    pub(super) fn text(&self, column: usize) -> String {
        self.opt_text(column).unwrap_or_default()
    }

    pub(super) fn opt_bytes(&self, column: usize) -> Option<Vec<u8>> {
        match self.0.get(column) {
            Some(Value::Bytes(value)) => value.clone(),
            _ => None,
        }
    }

    pub(super) fn opt_instant(&self, column: usize) -> Option<Instant> {
        self.opt_int(column).map(Instant::from_micros)
    }

    pub(super) fn instant(&self, column: usize) -> Instant {
        Instant::from_micros(self.int(column))
    }
}

/// What `[ints ?1]` takes.
pub(super) fn list(numbers: &[i64]) -> String {
    serde_json::to_string(numbers).expect("numbers are always JSON")
}

/// The values of a statement, in order.
macro_rules! values {
    ($($value:expr),* $(,)?) => { &[$($crate::queue::db::Value::from($value)),*] };
}
pub(super) use values;

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(Some(value))
    }
}

impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Self::Int(Some(i64::from(value)))
    }
}

impl From<Option<i64>> for Value {
    fn from(value: Option<i64>) -> Self {
        Self::Int(value)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Int(Some(i64::from(value)))
    }
}

impl From<Instant> for Value {
    fn from(value: Instant) -> Self {
        Self::Int(Some(value.as_micros()))
    }
}

impl From<Option<Instant>> for Value {
    fn from(value: Option<Instant>) -> Self {
        Self::Int(value.map(Instant::as_micros))
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(Some(value.to_owned()))
    }
}

impl From<&String> for Value {
    fn from(value: &String) -> Self {
        Self::Text(Some(value.clone()))
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Text(Some(value))
    }
}

impl From<Option<&str>> for Value {
    fn from(value: Option<&str>) -> Self {
        Self::Text(value.map(ToOwned::to_owned))
    }
}

impl From<&Option<String>> for Value {
    fn from(value: &Option<String>) -> Self {
        Self::Text(value.clone())
    }
}

impl From<Vec<u8>> for Value {
    fn from(value: Vec<u8>) -> Self {
        Self::Bytes(Some(value))
    }
}

impl From<&Option<Vec<u8>>> for Value {
    fn from(value: &Option<Vec<u8>>) -> Self {
        Self::Bytes(value.clone())
    }
}

impl rusqlite::ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Int(Some(value)) => ValueRef::Integer(*value),
            Self::Text(Some(value)) => ValueRef::Text(value.as_bytes()),
            Self::Bytes(Some(value)) => ValueRef::Blob(value),
            Self::Int(None) | Self::Text(None) | Self::Bytes(None) => ValueRef::Null,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::{Dialect, dialect};

    #[test]
    fn a_statement_is_written_for_each_database() {
        let sql = "select id from mail_message where seq in [ints ?1] and id = ?2 [skip locked]";
        assert_eq!(
            dialect(sql, Dialect::Sqlite),
            "select id from mail_message where seq in (select value from json_each(?1)) and id = ?2 "
        );
        assert_eq!(
            dialect(sql, Dialect::Postgres("limits")),
            "select id from \"limits\".mail_message where seq in (select value::bigint from \
             json_array_elements_text($1::json)) and id = $2 for update skip locked"
        );
    }
}
