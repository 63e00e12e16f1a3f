//! Lines for whoever runs the program.
//!
//! A full disk or a closed pipe loses lines, never the work: the command goes on, and ends with the
//! exit code that says what came of it.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Prints a line to standard output.
macro_rules! say {
    ($($text:tt)*) => { crate::say::to_output(format_args!($($text)*)) };
}

/// Prints a line to standard error: what is said beside the result.
macro_rules! note {
    ($($text:tt)*) => { crate::say::to_error(format_args!($($text)*)) };
}

pub(crate) fn to_output(line: Arguments<'_>) {
    static IS_LOST: AtomicBool = AtomicBool::new(false);
    let Err(error) = writeln!(std::io::stdout(), "{line}") else { return };
    // A reader who has seen enough, as `head` has, is no fault; and one sentence is enough.
    if error.kind() != ErrorKind::BrokenPipe && !IS_LOST.swap(true, Ordering::Relaxed) {
        note!("standard output cannot be written ({error}): what follows is lost");
    }
}

pub(crate) fn to_error(line: Arguments<'_>) {
    // There is nobody left to tell.
    let _ = writeln!(std::io::stderr(), "{line}");
}
