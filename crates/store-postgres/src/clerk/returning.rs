//! Callers who ask again as soon as they are answered.
//!
//! They come back while the others are already in flight. So two half groups take turns for ever, and
//! each of them pays for a whole commit. Waiting a moment for those just answered makes one group
//! of both.

use tokio::sync::mpsc;

/// How often the queue is looked at, which takes about a tenth of a millisecond. Counted, because a
/// runtime's timers are no finer than a whole one.
const LOOKS: u32 = 128;
/// Groups that are not waited for after a wait in vain.
const NOT_WAITED_FOR: u32 = 64;

#[derive(Debug, Default)]
pub(super) struct Returning {
    skipped: u32,
}

impl Returning {
    /// Waits a moment for as many as were just answered, while they are seen to come back.
    pub(super) async fn wait<T>(&mut self, answered: usize, queue: &mpsc::Receiver<T>) {
        if answered < 2 || self.skipped > 0 {
            self.skipped = self.skipped.saturating_sub(1);
            return tokio::task::yield_now().await;
        }
        let waiting = queue.len();
        for _ in 0..LOOKS {
            if queue.len() >= waiting + answered {
                return;
            }
            tokio::task::yield_now().await;
        }
        if queue.len() < waiting + answered / 2 {
            self.skipped = NOT_WAITED_FOR;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn those_who_come_back_are_waited_for_and_others_are_not_again_and_again() {
        let (sender, queue) = mpsc::channel(16);
        let mut returning = Returning::default();
        let found = async {
            returning.wait(3, &queue).await;
            queue.len()
        };
        let coming_back = async {
            for number in 0..3 {
                tokio::task::yield_now().await;
                sender.try_send(number).unwrap();
            }
        };
        let (found, ()) = tokio::join!(found, coming_back);
        assert_eq!((found, returning.skipped), (3, 0), "all were waited for");
        returning.wait(3, &queue).await;
        assert_eq!(returning.skipped, NOT_WAITED_FOR, "nobody came");
        returning.wait(3, &queue).await;
        assert_eq!(returning.skipped, NOT_WAITED_FOR - 1);
    }
}
