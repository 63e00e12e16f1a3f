//! A client of few words.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio_postgres::{Error, NoTls, SimpleQueryMessage};

#[derive(Debug)]
pub(crate) struct Client(tokio_postgres::Client);

pub(crate) async fn connect(url: &str) -> Result<Client, Error> {
    let (client, connection) = at_last(tokio_postgres::connect(url, NoTls)).await?;
    // What ends it is seen by the client, too.
    tokio::spawn(async { drop(connection.await) });
    Ok(Client(client))
}

impl Client {
    pub(crate) async fn run(&self, sql: &str) -> Result<(), Error> {
        at_last(self.0.batch_execute(sql)).await
    }

    /// The first column of the first row.
    pub(crate) async fn one(&self, sql: &str) -> String {
        let answer = at_last(self.0.simple_query(sql)).await.unwrap();
        let row = answer.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        row.unwrap().get(0).unwrap().to_owned()
    }
}

pub(crate) fn is_refused(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|it| it.downcast_ref::<io::Error>());
    source.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// What it gives if it gives it soon: for what must not come. On the loopback, this is long.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(Duration::from_millis(300), future).await.ok()
}

/// What is never answered is a failure, not a test that never ends.
pub(crate) async fn at_last<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("an answer within a minute")
}
