//! One function for each fuzz target: any bytes go in, and it panics if a promise is broken.
//!
//! The fuzzer calls them from `fuzz_targets/`, the test `corpus` with every input that is kept.

mod mail;
mod policies;
mod receipts;
mod routes;
mod schedules;
mod served;
mod states;
mod values;

pub use mail::{eml, mail_message};
pub use policies::{config_toml, policy_json, policy_toml};
pub use receipts::receipt;
pub use routes::{proxies, routes};
pub use schedules::{schedule_window, slot_import};
pub use served::{gate, request};
pub use states::state;
pub use values::{store_url, values};

/// A target takes any bytes.
pub type Target = fn(&[u8]);

/// All of them, by the names of their binaries and corpora.
pub const TARGETS: [(&str, Target); 15] = [
    ("config_toml", config_toml),
    ("eml", eml),
    ("gate", gate),
    ("mail_message", mail_message),
    ("policy_json", policy_json),
    ("policy_toml", policy_toml),
    ("proxies", proxies),
    ("receipt", receipt),
    ("request", request),
    ("routes", routes),
    ("schedule_window", schedule_window),
    ("slot_import", slot_import),
    ("state", state),
    ("store_url", store_url),
    ("values", values),
];

/// Takes numbers from the front of an input; zero when it is used up.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) = self.0.split_at(N.min(self.0.len()));
        self.0 = rest;
        std::array::from_fn(|position| taken.get(position).copied().unwrap_or(0))
    }

    fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn i64(&mut self) -> i64 {
        i64::from_le_bytes(self.take())
    }
}
