//! The cases every store must pass: one body each, stamped onto a store by [`conformance!`].
//!
//! [`conformance!`]: crate::conformance!

pub mod algorithms;
pub mod once;
pub mod overrides;
pub mod policies;
pub mod refunds;
pub mod several;
pub mod slots;
pub mod subjects;
pub mod time;

/// Stamps every case onto the store that `$open` opens: an `async fn() -> S` where
/// [`Stage`](crate::Stage) is made from `S`, so `(Tollgate, ManualClock)` will do.
#[macro_export]
macro_rules! conformance {
    ($open:ident) => {
        $crate::stamp! { $open;
            algorithms {
                exactly_max_pass_in_a_fixed_window_and_retry_at_is_exact
                exactly_max_pass_in_a_sliding_window_and_retry_at_is_exact
                exactly_max_pass_from_a_bucket_and_retry_at_is_exact
                retry_at_is_exact_where_the_rate_does_not_divide
                retry_at_of_a_weighted_cost_is_when_enough_has_left
                a_bucket_passes_its_burst_at_once_and_then_its_rate
                a_cost_counts_as_many_units
                a_cost_above_max_never_fits_and_spends_nothing
                a_cost_of_zero_is_an_error
                a_maximum_of_zero_refuses_all
                a_peek_writes_nothing
                a_peek_reports_what_a_check_would_say
            }
            several {
                three_tiers_spend_in_all_or_in_none
                the_wait_is_the_longest_of_the_refusing_limits
                one_limit_that_never_fits_outweighs_any_wait
                a_shadow_limit_counts_and_reports_but_never_refuses
                sixteen_limits_are_one_decision
            }
            subjects {
                an_override_does_not_reach_another_attribute_of_the_same_value
                a_missing_attribute_is_named_and_nothing_is_spent
                an_unknown_policy_is_an_error
                subjects_are_counted_apart
                values_do_not_run_into_each_other
                long_values_are_counted_apart
                the_longest_values_of_all_are_counted_apart
                an_ipv6_network_of_64_bits_is_one_subject
                an_email_is_one_subject_however_it_is_written
                max_by_gives_each_role_its_own_and_others_the_default
                an_override_takes_effect_at_once_and_so_does_its_end
                an_override_reaches_one_subject_of_one_limit
                an_override_that_cannot_be_is_refused
                private_values_are_not_in_receipts
                private_values_are_not_in_overrides
            }
            overrides {
                an_override_stays_in_force_however_its_limit_counts_the_subject
                an_override_can_be_taken_away_however_its_limit_counts
                a_private_override_can_be_taken_away_however_its_limit_counts
            }
            refunds {
                a_refund_of_a_fixed_window_gives_back_exactly_once
                a_refund_of_a_sliding_window_gives_back_exactly_once
                a_refund_of_a_bucket_gives_back_exactly_once
                a_refund_of_several_limits_gives_back_in_all
                a_refund_gives_back_where_something_is_left
                a_refund_gives_back_the_whole_cost
                a_refund_of_a_shadow_limit_gives_back_too
                a_refund_after_its_window_is_expired
                a_refund_that_was_swept_is_not_done_again
                a_refund_survives_a_change_of_max
                a_forged_or_altered_receipt_is_an_error
                a_receipt_of_another_store_is_an_error
            }
            policies {
                an_unchanged_policy_makes_no_new_version
                a_changed_max_keeps_the_counts
                a_bucket_with_its_own_burst_keeps_its_units
                a_changed_per_starts_new_counts_and_says_so
                a_changed_algorithm_starts_new_counts_and_says_so
                a_changed_by_starts_new_counts_and_says_so
                a_changed_timezone_starts_new_counts_and_says_so
                only_the_limits_that_changed_start_anew
                a_deleted_policy_is_gone_and_its_versions_stay
                a_deleted_policy_comes_back_with_its_counts
                versions_say_who_and_when_and_what
                a_max_below_what_is_used_leaves_nothing
                a_policy_value_is_stored_nowhere
                a_file_policy_is_applied_once
            }
            time {
                a_day_in_rome_ends_at_local_midnight
                a_day_of_23_hours_ends_at_local_midnight
                a_day_of_25_hours_ends_at_local_midnight
                a_clock_that_steps_back_mints_nothing_in_a_fixed_window
                a_clock_that_steps_back_mints_nothing_in_a_sliding_window
                a_clock_that_steps_back_mints_nothing_in_a_bucket
                time_never_goes_back_within_a_key
                sweeping_changes_no_answer
                sweeping_and_stepping_back_mints_nothing
            }
            slots {
                a_burst_fills_window_after_window_in_order
                an_id_is_one_slot_however_often_it_is_asked_for
                an_id_without_a_time_is_repeated_without_one
                an_id_with_other_inputs_is_refused
                a_bad_id_or_policy_is_an_error_and_nothing_is_counted
                a_policy_that_gives_no_more_repeats_what_it_gave
                a_request_in_mid_window_gets_its_share
                a_cancel_frees_its_place_and_not_its_id
                a_raised_max_opens_the_rest_of_a_window_and_a_lowered_one_closes_it
                a_changed_per_counts_what_was_given_before
                a_full_horizon_is_said_and_nothing_is_counted
                a_changed_per_counts_what_lies_behind_when_somebody_asks_for_it
                a_longer_retention_holds_at_once
                old_slots_go_and_none_is_given_so_far_back
                an_office_hours_policy_never_gives_a_closed_hour
                listings_go_page_by_page_in_order
                ten_callers_with_one_id_get_one_slot
                one_id_in_two_policies_at_once_is_one_slot
                many_callers_at_once_never_overfill_a_window
            }
            once {
                an_answer_is_replayed_after_its_policy_is_gone
                an_allowed_answer_is_replayed_and_counted_once
                a_refusal_is_not_recorded
                a_cost_that_never_fits_is_not_recorded
                the_order_of_attributes_makes_no_other_request
                a_key_with_another_request_is_an_error
                keys_of_different_scopes_do_not_meet
                sixteen_duplicates_at_once_count_once_and_get_the_same_bytes
                a_record_expires_after_24_hours
                a_replay_outlives_a_change_of_policy
                a_recorded_receipt_can_be_refunded
                a_refund_is_replayed_under_its_key
                a_refund_that_was_not_done_is_not_recorded
                sixteen_refunds_at_once_give_back_once
            }
        }
    };
}

/// What [`conformance!`](crate::conformance!) expands to.
#[doc(hidden)]
#[macro_export]
macro_rules! stamp {
    ($open:ident; $($group:ident { $($case:ident)+ })+) => {
        $(mod $group {
            $(
                #[test]
                fn $case() {
                    $crate::run(super::$open, $crate::conformance::$group::$case);
                }
            )+
        })+
    };
}

#[cfg(test)]
mod tests {
    /// A case that is written and never stamped would prove nothing.
    #[test]
    fn every_case_is_stamped() {
        let list = include_str!("conformance.rs");
        let groups = [
            include_str!("conformance/algorithms.rs"),
            include_str!("conformance/once.rs"),
            include_str!("conformance/overrides.rs"),
            include_str!("conformance/policies.rs"),
            include_str!("conformance/refunds.rs"),
            include_str!("conformance/several.rs"),
            include_str!("conformance/slots.rs"),
            include_str!("conformance/subjects.rs"),
            include_str!("conformance/time.rs"),
        ];
        for line in groups.iter().flat_map(|group| group.lines()) {
            if let Some(case) = line.strip_prefix("pub async fn ") {
                let name = case.split('(').next().unwrap();
                let stamped = list.lines().any(|line| line.trim() == name);
                assert!(stamped, "the case {name} is not in the list of conformance!");
            }
        }
    }
}
