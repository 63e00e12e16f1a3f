//! Many tasks at once, on a clock that stands still: exactly what fits is allowed.

pub mod changes;
pub mod exact;

use std::future::Future;

/// How many race.
pub const TASKS: u32 = 64;

/// Stamps every race onto the store that `$open` opens.
#[macro_export]
macro_rules! concurrency {
    ($open:ident) => {
        mod concurrency {
            $crate::stamp_races! { $open;
                exact {
                    exactly_max_pass_a_fixed_window
                    exactly_max_pass_a_sliding_window
                    exactly_max_pass_a_bucket
                    exactly_max_pass_three_fixed_windows_at_once
                    exactly_max_pass_three_sliding_windows_at_once
                    exactly_max_pass_three_buckets_at_once
                    keys_that_cross_are_all_exact
                    weighted_costs_never_pass_above_max_and_what_fits_is_accepted
                    exactly_max_pass_under_keys_and_without
                }
                changes {
                    refunds_never_let_more_than_max_stand_in_a_fixed_window
                    refunds_never_let_more_than_max_stand_in_a_sliding_window
                    refunds_never_let_more_than_max_stand_in_a_bucket
                    a_raised_max_is_filled_exactly
                    a_lowered_max_holds_from_the_moment_it_is_applied
                    sweeping_meanwhile_loses_nothing
                }
            }
        }
    };
}

/// What [`concurrency!`](crate::concurrency!) expands to.
#[doc(hidden)]
#[macro_export]
macro_rules! stamp_races {
    ($open:ident; $($group:ident { $($race:ident)+ })+) => {
        $($(
            #[test]
            fn $race() {
                $crate::run(super::$open, $crate::concurrency::$group::$race);
            }
        )+)+
    };
}

/// Starts all tasks, lets none go before the last is there, and gathers what they return.
async fn race<T, F>(task: impl Fn(u32) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(TASKS as usize));
    let tasks: Vec<_> = (0..TASKS)
        .map(|number| {
            let (barrier, task) = (barrier.clone(), task(number));
            tokio::spawn(async move {
                barrier.wait().await;
                task.await
            })
        })
        .collect();
    let mut results = Vec::with_capacity(tasks.len());
    for task in tasks {
        results.push(task.await.expect("no task of a race panics"));
    }
    results
}
