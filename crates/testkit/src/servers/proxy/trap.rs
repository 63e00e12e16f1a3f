//! Waits for a pattern among the bytes a client sends.

/// The longest pattern, and so what must be remembered of the bytes before.
const PATTERN_BYTES: usize = 256;

/// When [`Proxy::cut_at`](super::Proxy::cut_at) cuts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// The server never gets the end of the pattern: what it asks for does not happen.
    BeforeTheServer,
    /// At once when the server has been sent it: it will do it, perhaps after the client has come
    /// back to look.
    OnceForwarded,
    /// When the server answers; the client never gets the answer. It has been done.
    AtTheAnswer,
}

#[derive(Clone, Debug)]
pub(super) struct Trap {
    pattern: Vec<u8>,
    pub(super) moment: Moment,
}

impl Trap {
    pub(super) fn new(pattern: &[u8], moment: Moment) -> Trap {
        assert!((1..=PATTERN_BYTES).contains(&pattern.len()), "1 to {PATTERN_BYTES} bytes");
        Trap { pattern: pattern.to_owned(), moment }
    }
}

/// What one client sent last: a pattern may come in pieces.
#[derive(Debug, Default)]
pub(super) struct Recent(Vec<u8>);

impl Recent {
    /// Whether the trap's pattern ends within `bytes`, the next that were sent.
    pub(super) fn completes(&self, bytes: &[u8], trap: &Trap) -> bool {
        let before = self.0.len().min(trap.pattern.len() - 1);
        let sent = [&self.0[self.0.len() - before..], bytes].concat();
        sent.windows(trap.pattern.len()).any(|window| window.eq_ignore_ascii_case(&trap.pattern))
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        self.0.drain(..self.0.len().saturating_sub(PATTERN_BYTES));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn springs(pieces: &[&[u8]]) -> bool {
        let trap = Trap::new(b"commit\0", Moment::AtTheAnswer);
        let mut recent = Recent::default();
        pieces.iter().any(|bytes| {
            let springs = recent.completes(bytes, &trap);
            recent.add(bytes);
            springs
        })
    }

    #[test]
    fn a_pattern_is_seen_in_either_case_and_in_pieces() {
        assert!(springs(&[b"begin\0", b"Q\0\0\0\x0bCOMMIT\0"]));
        assert!(springs(&[b"com", b"m", b"it", b"\0"]));
        assert!(springs(&[&[b'x'; 1000], b"commi", b"t\0"]));
    }

    #[test]
    fn nothing_else_is_taken_for_it() {
        assert!(!springs(&[b"commit", b" prepared\0"]));
        assert!(!springs(&[b"com", b"xmit\0"]));
        assert!(!springs(&[b"", b"\0"]));
    }
}
