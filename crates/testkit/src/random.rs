//! Names nobody else uses, and moments nobody expects.

/// Panics if the system has no randomness: no test can go on without.
pub fn number() -> u64 {
    getrandom::u64().expect("the system gives random bytes")
}

pub fn below(bound: u64) -> u64 {
    number() % bound
}

/// `name-0123456789abcdef`
pub fn name(name: &str) -> String {
    format!("{name}-{:016x}", number())
}
