//! The same cases on every database: one named test per case and database.

mod held;
mod intake;
mod outcomes;
mod owners;
mod removed;
mod scramble;
mod stage;
mod work;

use stage::Stage;

/// Stamps each case onto SQLite in memory, SQLite in a file, PostgreSQL, and that through
/// PgBouncer.
macro_rules! cases {
    ($($module:ident: $($case:ident),* $(,)?;)*) => {
        mod memory {
            $($(#[tokio::test(flavor = "multi_thread", worker_threads = 2)] async fn $case() {
                super::$module::$case(super::Stage::memory().await).await;
            })*)*
        }
        mod file {
            $($(#[tokio::test(flavor = "multi_thread", worker_threads = 2)] async fn $case() {
                super::$module::$case(super::Stage::file().await).await;
            })*)*
        }
        mod postgres {
            $($(#[tokio::test(flavor = "multi_thread", worker_threads = 2)] async fn $case() {
                super::$module::$case(super::Stage::postgres().await).await;
            })*)*
        }
        mod pgbouncer {
            $($(#[tokio::test(flavor = "multi_thread", worker_threads = 2)] async fn $case() {
                super::$module::$case(super::Stage::pgbouncer().await).await;
            })*)*
        }
    };
}

cases! {
    intake:
        the_same_id_again_is_not_queued_twice,
        an_id_with_another_content_is_taken,
        a_batch_that_is_tried_again_is_told_apart_message_by_message,
        ids_of_two_tenants_do_not_meet,
        a_message_for_another_tenants_account_is_not_taken,
        content_comes_back_as_it_was,
        an_account_with_unsent_mail_cannot_be_deleted,
        a_report_secret_is_made_once_and_replaced_when_given,
        a_setting_stays_what_it_was_first;
    work:
        priority_goes_first_and_order_is_kept_within,
        a_claimed_message_is_not_claimed_again,
        many_claimers_share_without_overlap,
        a_released_message_keeps_its_place_and_its_attempts,
        a_paused_account_has_no_work_until_it_resumes,
        a_longer_pause_wins_and_one_by_old_limits_is_not_noted,
        an_ordinary_pause_lets_priority_0_through,
        a_deferred_message_is_promoted_when_it_is_due,
        the_next_instant_is_the_earliest_of_all,
        what_we_have_under_way_is_not_recovered,
        an_expired_lease_is_recovered_and_logged,
        a_claim_that_changed_meanwhile_is_not_taken_over;
    outcomes:
        what_was_sent_is_final_and_its_content_gone,
        a_failure_is_final_reported_and_due_back,
        a_retry_waits_for_its_instant,
        a_throttled_account_pauses_and_the_message_waits,
        a_rate_limited_message_is_no_attempt,
        a_lost_lease_changes_nothing_but_the_log,
        a_late_success_is_noted_if_nobody_else_has_the_message,
        reports_are_leased_to_one_and_kept_until_taken,
        tenants_with_reports_take_turns,
        reports_that_failed_wait;
    held:
        a_suspended_tenant_has_no_work,
        a_suspended_batch_waits_with_what_comes_later,
        run_now_makes_deferred_mail_due_and_forgets_pauses,
        deleted_messages_are_gone_and_their_quota_due,
        cleanup_removes_only_what_is_old_and_final,
        pages_follow_each_other_and_filters_hold,
        a_paced_account_and_a_free_one_are_listed_apart,
        a_page_over_many_accounts_has_the_first_of_all,
        counts_add_up_after_every_step;
    owners:
        nothing_is_given_to_a_tenant_that_is_gone,
        nothing_outlives_a_tenant_that_is_deleted_at_that_moment;
    removed:
        a_removed_message_is_not_queued_again_by_a_retry,
        what_no_retry_can_come_for_leaves_nothing_when_it_is_removed,
        a_retry_at_the_moment_of_the_removal_queues_nothing;
    scramble:
        counts_and_rows_agree_after_a_scramble;
}
