//! Exit codes, in one place: 0 allowed or done, 1 refused, 2 bad usage or input, 3 unreachable.

use std::process::ExitCode;

use serde_json::Value;
use tollgate::Error;
use tollgate_mail::MailError;

/// A command that did its work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Done {
    Ok,
    Refused,
    /// Some of what was given is not valid; the rest is done, and what is wrong was said.
    PartlyBad,
}

/// A command that could not.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
    /// The same for programs, on standard output: where they asked for that, what the server said.
    document: Option<Value>,
}

impl Failure {
    pub(crate) fn bad_input(message: impl Into<String>) -> Self {
        Self { code: 2, message: message.into(), document: None }
    }

    pub(crate) fn unreachable(message: impl Into<String>) -> Self {
        Self { code: 3, message: message.into(), document: None }
    }

    pub(crate) fn told_to_programs(self, document: Value) -> Self {
        Self { document: Some(document), ..self }
    }

    /// The same failure, and where it left the work.
    pub(crate) fn context(self, more: impl std::fmt::Display) -> Self {
        Self { message: format!("{} ({more})", self.message), ..self }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Store(store) => Self::unreachable(store.to_string()),
            other => Self::bad_input(other.to_string()),
        }
    }
}

impl From<MailError> for Failure {
    fn from(error: MailError) -> Self {
        match error {
            MailError::Store(store) => Self::unreachable(store.to_string()),
            other => Self::bad_input(other.to_string()),
        }
    }
}

pub(crate) fn code(result: Result<Done, Failure>) -> ExitCode {
    match result {
        Ok(Done::Ok) => ExitCode::SUCCESS,
        Ok(Done::Refused) => ExitCode::from(1),
        Ok(Done::PartlyBad) => ExitCode::from(2),
        Err(Failure { code, message, document }) => {
            if let Some(document) = document {
                say!("{document}");
            }
            note!("error: {message}");
            ExitCode::from(code)
        }
    }
}
