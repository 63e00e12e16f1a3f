//! Proves stores: conformance, model, manual clock, faults (never published).
//!
//! A store is proved by three lines in a test of its own, each given a factory that opens it:
//! [`conformance!`] stamps the named cases, [`model!`] runs generated scripts on the store and on
//! the core alone, [`concurrency!`] lets many tasks race. Everything goes through the public
//! interface of `tollgate`. No case sleeps, and none flushes anything: each has names of its own.
//!
//! ```no_run
//! async fn memory() -> (tollgate::Tollgate, testkit::ManualClock) {
//!     let clock = testkit::ManualClock::start();
//!     (tollgate::Tollgate::open_with_clock("memory:", clock.shared()).await.unwrap(), clock)
//! }
//! testkit::conformance!(memory);
//! testkit::model!(memory, scripts = 100);
//! testkit::concurrency!(memory);
//! ```

mod clock;
pub mod concurrency;
pub mod conformance;
mod dice;
pub mod faults;
pub mod history;
mod http;
pub mod kill;
pub mod model;
pub mod puppet;
pub mod random;
pub mod servers;
pub mod sim;
pub mod soak;
mod stage;

pub use clock::ManualClock;
pub use stage::{Stage, Trial, run};
