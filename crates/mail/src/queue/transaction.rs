//! One transaction of whichever database.

/// Runs `$work` on `$db` in a transaction of whichever database, with the owned copies that
/// SQLite's thread needs made first.
macro_rules! transaction {
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
                    Ok(value) => session.commit().await.map(|()| value),
                    Err(error) => {
                        session.roll_back().await;
                        Err(error)
                    }
                }
            }
        }
    }};
}
pub(super) use transaction;
