//! One message to one SMTP server: connecting, saying it, and what the answer means.
//!
//! A connection is kept by whoever called and given again with the next message. Nothing here
//! knows about queues, limits or later attempts. A message goes to all of its recipients or to
//! none: if the server refuses one of them, nothing is sent.

mod answers;
mod connection;
mod encryption;
mod failure;
mod folding;
mod message;
mod parts;
mod server;

use tokio::time::Instant as Deadline;

pub(crate) use connection::Connection;
pub(crate) use failure::{Failure, Kind, Stage};
pub(crate) use message::{Identity, Outgoing};
pub(crate) use server::Server;

/// What the server said when it took a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Reply {
    pub(crate) code: u16,
    pub(crate) text: String,
}

/// What became of a message, and the connection if it can carry another.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) result: Result<Reply, Failure>,
    pub(crate) connection: Option<Connection>,
}

/// Sends a message over the kept connection or a new one, within the server's time for one
/// attempt. If the kept one turns out to be closed before the message was said, a new one is
/// tried at once; also if the server closes it with words that ask for a pause, as those may be
/// about that connection. If it means all of them, it says so again.
pub(crate) async fn deliver(
    server: &Server,
    kept: Option<Connection>,
    message: &Outgoing,
) -> Delivery {
    let deadline = Deadline::now() + server.attempt_timeout;
    if let Some(connection) = kept {
        let delivery = say(connection, server, message, deadline).await;
        match &delivery.result {
            Err(failure)
                if failure.connection_lost
                    && !failure.maybe_sent
                    && (failure.kind != Kind::Throttled || failure.stage == Stage::Sender) =>
            {
                tracing::debug!(host = server.host, "a kept connection was closed; a new one");
            }
            _ => return delivery,
        }
    }
    match Connection::open(server, deadline).await {
        Ok(connection) => say(connection, server, message, deadline).await,
        Err(failure) => Delivery { result: Err(failure), connection: None },
    }
}

async fn say(
    mut connection: Connection,
    server: &Server,
    message: &Outgoing,
    deadline: Deadline,
) -> Delivery {
    let result = connection.send(server, message, deadline).await;
    let lost = result.as_ref().is_err_and(|failure| failure.connection_lost);
    Delivery { result, connection: (!lost).then_some(connection) }
}
