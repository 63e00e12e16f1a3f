//! Lines for whoever runs the program.
//!
//! A full disk or a closed pipe loses lines, never the work: the command goes on, and ends with the
//! exit code that says what came of it.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::exit::Failure;

/// Prints a line to standard output.
macro_rules! say {
    ($($text:tt)*) => { crate::say::to_output(format_args!($($text)*)) };
}

/// Prints a line to standard error: what is said beside the result.
macro_rules! note {
    ($($text:tt)*) => { crate::say::to_error(format_args!($($text)*)) };
}

/// Whether a line could not be written to standard output, for want of room or of a reader.
static IS_LOST: AtomicBool = AtomicBool::new(false);

/// For what is shown once: it must have been seen.
pub(crate) fn seen(what: &str) -> Result<(), Failure> {
    if !IS_LOST.load(Ordering::Relaxed) {
        return Ok(());
    }
    Err(Failure::unreachable(format!("{what} was made and could not be shown: make another")))
}

pub(crate) fn to_output(line: Arguments<'_>) {
    let Err(error) = writeln!(std::io::stdout(), "{line}") else { return };
    // A reader who has seen enough, as `head` has, is no fault; and one sentence is enough.
    if !IS_LOST.swap(true, Ordering::Relaxed) && error.kind() != ErrorKind::BrokenPipe {
        note!("standard output cannot be written ({error}): what follows is lost");
    }
}

pub(crate) fn to_error(line: Arguments<'_>) {
    // There is nobody left to tell.
    let _ = writeln!(std::io::stderr(), "{line}");
}
