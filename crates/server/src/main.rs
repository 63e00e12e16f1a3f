//! Starts [`tollgate_server`].

use std::process::ExitCode;

/// Measured against the system's: see ARCHITECTURE.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tollgate_server::run()
}
