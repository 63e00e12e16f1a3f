//! Long work in short transactions, so that nobody waits long behind one.

use crate::error::MailError;

/// Rows that one of them moves or removes.
const CHUNK: u32 = 1000;

/// Takes a step of up to so many rows, until one finds fewer. How many in all.
pub(crate) async fn in_chunks<Step: Future<Output = Result<u64, MailError>>>(
    mut step: impl FnMut(u32) -> Step,
) -> Result<u64, MailError> {
    let mut all = 0;
    loop {
        let rows = step(CHUNK).await?;
        all += rows;
        if rows < u64::from(CHUNK) {
            return Ok(all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn steps_are_taken_until_one_finds_fewer() {
        for (rows, steps) in [(0, 1), (999, 1), (1000, 2), (2500, 3)] {
            let (mut left, mut taken) = (rows, 0);
            let all = in_chunks(|limit| {
                let found = left.min(u64::from(limit));
                (left, taken) = (left - found, taken + 1);
                async move { Ok(found) }
            });
            assert_eq!((all.await.unwrap(), taken), (rows, steps));
        }
    }
}
