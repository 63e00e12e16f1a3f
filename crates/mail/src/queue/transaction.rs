//! One transaction of whichever database.

/// Runs `$work` on `$db` in a transaction of whichever database, with the owned copies that
/// SQLite's thread needs made first.
macro_rules! transaction {
    ($how:ident $queue:expr, [$($name:ident = $owned:expr),*] $db:ident => $work:expr) => {
        $crate::queue::transaction::told_transaction!(
            $how $queue, [$($name = $owned),*] $db => $work)
        .map_err($crate::error::MailError::from)
    };
}
pub(super) use transaction;

/// The same; and its error tells whether something may have been kept.
macro_rules! told_transaction {
    ($how:ident $queue:expr, [$($name:ident = $owned:expr),*] $db:ident => $work:expr) => {{
        $(let $name = $owned;)*
        match $queue {
            $crate::queue::Queue::Sqlite(sqlite) => sqlite.$how(move |$db| $crate::queue::db::run_now(async { $work.await })).await,
            $crate::queue::Queue::Postgres(postgres) => {
                let session = postgres.$how().await?;
                let worked = {
                    let $db = &$crate::queue::db::Db::Postgres(&session);
                    $work.await
                };
                match worked {
                    Ok(value) => session
                        .commit()
                        .await
                        .map(|()| value)
                        .map_err($crate::queue::NotWritten::Perhaps),
                    Err(error) => {
                        session.roll_back().await;
                        Err($crate::queue::NotWritten::Surely(error))
                    }
                }
            }
        }
    }};
}
pub(super) use told_transaction;
