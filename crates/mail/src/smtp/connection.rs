//! A conversation with one server: hello, TLS, login, then any number of messages.

use std::io;
use std::time::Duration;

use lettre::transport::smtp::Error;
use lettre::transport::smtp::authentication::Mechanism;
use lettre::transport::smtp::client::{AsyncSmtpConnection, AsyncTokioStream};
use lettre::transport::smtp::commands::{Data, Mail, Rcpt, Rset, Starttls};
use lettre::transport::smtp::extension::{Extension, MailBodyParameter, MailParameter};
use lettre::transport::smtp::response::Response;
use tokio::net::TcpStream;
use tokio::time::Instant as Deadline;

use super::Reply;
use super::answers::Answers;
use super::failure::{Failure, Kind, Stage};
use super::message::Outgoing;
use super::server::Server;
use crate::model::Tls;

/// How long goodbye may take.
const QUIT_TIMEOUT: Duration = Duration::from_secs(2);
/// The only answer to `DATA` after which a server takes the message.
const GO_AHEAD: u16 = 354;

/// Ready for a message.
pub(crate) struct Connection {
    smtp: AsyncSmtpConnection,
    /// When it carried the last one.
    pub(crate) idle_since: Deadline,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connection")
    }
}

impl Connection {
    pub(super) async fn open(server: &Server, deadline: Deadline) -> Result<Self, Failure> {
        let until = deadline.min(Deadline::now() + server.connect_timeout);
        let doing = format!("connecting to {}:{}", server.host, server.port);
        match tokio::time::timeout_at(until, connect(server, &doing)).await {
            Ok(opened) => opened,
            Err(_) => Err(Failure::timeout(Stage::Connecting, &doing)),
        }
    }

    /// Says one message. After a refusal the connection is ready for another one, unless the
    /// failure says that it is lost.
    pub(super) async fn send(
        &mut self,
        server: &Server,
        message: &Outgoing,
        deadline: Deadline,
    ) -> Result<Reply, Failure> {
        let said = self.say(server, message, deadline).await;
        if let Err(failure) = &said
            && !failure.connection_lost
        {
            let until = deadline.min(Deadline::now() + server.command_timeout);
            let reset = tokio::time::timeout_at(until, self.smtp.command(Rset)).await;
            if !matches!(reset, Ok(Ok(_))) {
                return Err(Failure { connection_lost: true, ..failure.clone() });
            }
        }
        self.idle_since = Deadline::now();
        said
    }

    async fn say(
        &mut self,
        server: &Server,
        message: &Outgoing,
        deadline: Deadline,
    ) -> Result<Reply, Failure> {
        let mail = Mail::new(Some(message.from.clone()), self.parameters(message)?);
        self.command(mail, Stage::Sender, "MAIL FROM", server, deadline).await?;
        for recipient in &message.recipients {
            let doing = format!("RCPT TO <{recipient}>");
            let command = Rcpt::new(recipient.clone(), vec![]);
            self.command(command, Stage::Recipient, &doing, server, deadline).await?;
        }
        let answer = self.command(Data, Stage::Message, "DATA", server, deadline).await?;
        if u16::from(answer.code()) != GO_AHEAD {
            return Err(out_of_step("DATA", &answer));
        }
        // One write: two would wait for each other's acknowledgement (Nagle).
        let doing = "sending the message";
        let answer = self.command(&message.data, Stage::Message, doing, server, deadline).await;
        let response = answer.map_err(|failure| {
            // The last dot may have arrived even if its answer did not.
            let maybe_sent = failure.code.is_none();
            Failure { maybe_sent, ..failure }
        })?;
        Ok(Reply { code: u16::from(response.code()), text: words(&response) })
    }

    /// What must be announced because not every server takes it.
    fn parameters(&self, message: &Outgoing) -> Result<Vec<MailParameter>, Failure> {
        let offers = |extension| self.smtp.server_info().supports_feature(extension);
        let mut parameters = Vec::new();
        let refuse = |text| Failure {
            stage: Stage::Message,
            connection_lost: false,
            ..Failure::permanent(text)
        };
        let addresses = message.recipients.iter().chain([&message.from]);
        if !addresses.map(AsRef::<str>::as_ref).all(str::is_ascii) {
            if !offers(Extension::SmtpUtfEight) {
                return Err(refuse(
                    "an address is not ASCII and the server does not take such addresses \
                     (SMTPUTF8)",
                ));
            }
            parameters.push(MailParameter::SmtpUtfEight);
        }
        if !message.data.is_ascii() {
            if !offers(Extension::EightBitMime) {
                return Err(refuse(
                    "the message is not ASCII and the server takes nothing else (8BITMIME)",
                ));
            }
            parameters.push(MailParameter::Body(MailBodyParameter::EightBitMime));
        }
        Ok(parameters)
    }

    async fn command(
        &mut self,
        command: impl std::fmt::Display,
        stage: Stage,
        doing: &str,
        server: &Server,
        deadline: Deadline,
    ) -> Result<Response, Failure> {
        let until = deadline.min(Deadline::now() + server.command_timeout);
        match tokio::time::timeout_at(until, self.smtp.command(command)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(Failure::of(&error, stage, doing)),
            Err(_) => Err(Failure::timeout(stage, doing)),
        }
    }

    /// Says goodbye, if the server still listens.
    pub(crate) async fn quit(mut self) {
        let _ = tokio::time::timeout(QUIT_TIMEOUT, self.smtp.quit()).await;
    }
}

async fn connect(server: &Server, doing: &str) -> Result<Connection, Failure> {
    let failed = |error: &Error| Failure::of(error, Stage::Connecting, doing);
    let lost = |error: io::Error| Failure::unconnected(format!("{doing}: {error}"));
    let tcp = TcpStream::connect((server.host.as_str(), server.port)).await.map_err(lost)?;
    let peer = tcp.peer_addr().map_err(lost)?;
    let stream: Box<dyn AsyncTokioStream> = match (server.tls, &server.encryption) {
        (Tls::Starttls, Some(encryption)) => {
            let tcp = ask_for_tls(tcp, server, doing).await?;
            Box::new(Answers::greeted(encryption.begin(tcp).await.map_err(lost)?, peer))
        }
        (Tls::Implicit, Some(encryption)) => {
            Box::new(Answers::new(encryption.begin(tcp).await.map_err(lost)?, peer))
        }
        _ => Box::new(Answers::new(tcp, peer)),
    };
    let greeting = AsyncSmtpConnection::connect_with_transport(stream, &server.hello);
    let mut smtp = greeting.await.map_err(|error| failed(&error))?;
    if let Some(credentials) = &server.credentials {
        let mechanisms = [Mechanism::Plain, Mechanism::Login];
        if let Err(error) = smtp.auth(&mechanisms, credentials).await {
            smtp.abort().await;
            return Err(login_failed(&error, server));
        }
    }
    Ok(Connection { smtp, idle_since: Deadline::now() })
}

/// Talks in plain text as far as `STARTTLS`, and gives the connection back ready for TLS. Whatever
/// the server said beyond its answer is dropped: anybody could have said it.
async fn ask_for_tls(tcp: TcpStream, server: &Server, doing: &str) -> Result<TcpStream, Failure> {
    let failed = |error: &Error| Failure::of(error, Stage::Connecting, doing);
    let lost = |error: io::Error| Failure::unconnected(format!("{doing}: {error}"));
    let peer = tcp.peer_addr().map_err(lost)?;
    // lettre keeps what it is given, so it is given a second handle to the same connection.
    let ours = tcp.into_std().map_err(lost)?;
    let lent = ours.try_clone().and_then(TcpStream::from_std).map_err(lost)?;
    let lent = Box::new(Answers::new(lent, peer));
    let greeting = AsyncSmtpConnection::connect_with_transport(lent, &server.hello);
    let mut smtp = greeting.await.map_err(|error| failed(&error))?;
    if !smtp.can_starttls() {
        smtp.abort().await;
        return Err(Failure::unconnected(format!(
            "{doing}: the server offers no STARTTLS; nothing is sent unencrypted unless the \
             account says use_tls = false"
        )));
    }
    smtp.command(Starttls).await.map_err(|error| failed(&error))?;
    drop(smtp);
    TcpStream::from_std(ours).map_err(lost)
}

/// The server speaks of something else than it was asked: nothing it says on this connection can be
/// relied on.
fn out_of_step(doing: &str, answer: &Response) -> Failure {
    let code = u16::from(answer.code());
    let text = format!("{doing}: {code} {} (expected {GO_AHEAD})", words(answer));
    Failure { stage: Stage::Message, code: Some(code), ..Failure::unconnected(text) }
}

fn words(answer: &Response) -> String {
    let lines: Vec<&str> = answer.message().collect();
    lines.join(" ")
}

/// Final unless the server says otherwise or was lost.
fn login_failed(error: &Error, server: &Server) -> Failure {
    let doing = format!("logging in to {}:{}", server.host, server.port);
    let failure = Failure::of(error, Stage::Connecting, &doing);
    let kind = if error.is_client() { Kind::Permanent } else { failure.kind };
    Failure { kind, connection_lost: true, ..failure }
}
