//! Asks an instance, and notes what it answers.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tollgate::core::store::{Receipt, SpendId};
use tollgate::core::{Cost, Malformed, Reader};
use tollgate::{Error, IdempotencyKey, OnceAnswer, Tollgate};

use super::database::Database;
use super::history::{Answer, Event, Outcome, Request, What};
use super::scene;

/// Notes that it is asked; its number.
pub(super) fn ask(database: &Database, instance: usize, what: What) -> usize {
    let state = &mut *database.state();
    let number = state.history.requests.len();
    let asked = database.note_in(state, Event::Asked(number));
    state.history.requests.push(Request { instance, what, asked, answer: None });
    number
}

/// Asks, and notes the answer; the receipt, if there is one.
pub(super) async fn perform(
    database: Arc<Database>,
    gate: Tollgate,
    number: usize,
    receipt: Option<String>,
) -> Option<String> {
    let what = database.state().history.requests[number].what.clone();
    let began = database.elapsed();
    let mut issued = None;
    let outcome = match what {
        What::Check { policy, user, cost, once } => {
            let (policy, user) = (format!("p{policy}"), scene::user(user));
            let subject = [("user", user.as_str())];
            match once {
                None => gate.check(&policy, &subject, cost).await.map(|answer| {
                    issued.clone_from(&answer.receipt);
                    decided(&answer)
                }),
                Some(once) => {
                    let key = format!("c{once}");
                    let key = IdempotencyKey { scope: b"sim", key: &key };
                    let render = move |answer: &tollgate::Answer| {
                        let decision = &answer.decision;
                        format!("#{number} {:?} {:?}", decision, answer.receipt).into_bytes()
                    };
                    let answered = gate.check_once(key, &policy, &subject, cost, render).await;
                    answered.map(|answer| match answer {
                        OnceAnswer::Fresh(answer) => {
                            issued.clone_from(&answer.receipt);
                            decided(&answer)
                        }
                        OnceAnswer::Replay(body) => Outcome::Replayed(body),
                    })
                }
            }
        }
        What::Peek { policy, user, cost } => {
            let (policy, user) = (format!("p{policy}"), scene::user(user));
            let peeked = gate.peek(&policy, &[("user", &user)], cost).await;
            peeked.map(|answer| decided(&answer))
        }
        What::Refund { once, .. } => {
            let receipt = receipt.expect("a refund has a receipt");
            match once {
                None => gate.refund(&receipt).await.map(Outcome::Refunded),
                Some(once) => {
                    let key = format!("r{once}");
                    let key = IdempotencyKey { scope: b"sim", key: &key };
                    let render = move |refunded| format!("#{number} {refunded:?}").into_bytes();
                    gate.refund_once(key, &receipt, render).await.map(|answer| match answer {
                        OnceAnswer::Fresh(refunded) => Outcome::Refunded(refunded),
                        OnceAnswer::Replay(body) => Outcome::Replayed(body),
                    })
                }
            }
        }
    };
    note(&database, number, began, outcome);
    issued
}

fn note(database: &Database, number: usize, began: Duration, outcome: Result<Outcome, Error>) {
    let late = database.elapsed().saturating_sub(began);
    let state = &mut *database.state();
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(Error::Store(error)) => Outcome::Failed(error.kind()),
        Err(error) => {
            return state.is_impossible(format!("#{number} is answered: {error}"));
        }
    };
    if late > super::DEADLINE + Duration::from_millis(5) {
        state.is_impossible(format!("#{number} is answered after {} ms", late.as_millis()));
    }
    let at = database.note_in(state, Event::Answered(number));
    state.history.requests[number].answer = Some(Answer { at, outcome });
}

fn decided(answer: &tollgate::Answer) -> Outcome {
    Outcome::Decided {
        decision: Box::new(answer.decision.clone()),
        version: answer.policy.version(),
        receipt: answer.receipt.as_deref().map(|text| read(text).expect("a receipt can be read")),
    }
}

/// What a receipt says, whoever signed it.
fn read(receipt: &str) -> Result<Receipt, Malformed> {
    let bytes = URL_SAFE_NO_PAD.decode(receipt).map_err(|_| Malformed)?;
    let mut reader = Reader(&bytes);
    let _version = reader.byte()?;
    let id = SpendId { run: reader.u64()?, sequence: reader.u64()? };
    let cost = u32::try_from(reader.u64()?).ok().and_then(Cost::new).ok_or(Malformed)?;
    let mut spends = Vec::new();
    for _ in 0..reader.u64()? {
        spends.push((reader.bytes()?.to_vec(), reader.spend()?));
    }
    Ok(Receipt { id, cost, spends })
}
