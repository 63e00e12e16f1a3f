//! The relay through its public face, on every store: one named test per case and store.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "model/catalogue.rs"]
mod catalogue;
#[path = "model/messages.rs"]
mod messages;
#[path = "model/opening.rs"]
mod opening;
#[path = "model/quota.rs"]
mod quota;
#[path = "model/secrets.rs"]
mod secrets;
#[path = "model/stage.rs"]
mod stage;

/// Stamps each case onto the relay in memory, in a file, and in PostgreSQL.
macro_rules! cases {
    ($($module:ident: $($case:ident),* $(,)?;)*) => {
        mod memory {
            $($(#[tokio::test(flavor = "multi_thread", worker_threads = 2)] async fn $case() {
                super::$module::$case(super::stage::Stage::memory().await).await;
            })*)*
        }
        mod file {
            $($(#[tokio::test(flavor = "multi_thread", worker_threads = 2)] async fn $case() {
                super::$module::$case(super::stage::Stage::file().await).await;
            })*)*
        }
        mod postgres {
            $($(#[tokio::test(flavor = "multi_thread", worker_threads = 2)] async fn $case() {
                super::$module::$case(super::stage::Stage::postgres().await).await;
            })*)*
        }
    };
}

cases! {
    catalogue:
        a_tenants_token_names_its_tenant_and_is_replaced,
        an_account_is_replaced_whole_and_keeps_its_password_only_for_its_server,
        bad_accounts_are_refused_with_the_field_named,
        accounts_of_two_tenants_do_not_meet,
        a_tenant_is_deleted_with_all_that_is_its_own,
        what_does_not_exist_is_not_found,
        report_secrets_are_made_once_and_shown_once,
        of_two_who_make_a_tenant_at_once_one_is_told_its_report_secret;
    messages:
        good_and_bad_messages_are_judged_one_by_one,
        bad_content_is_refused_with_the_field_named,
        a_repeated_id_is_fine_and_a_reused_one_is_not,
        a_page_has_a_cursor_until_the_last,
        batches_are_suspended_and_activated,
        cleanup_works_in_many_chunks;
    quota:
        exactly_the_limit_passes_and_one_more_does_not,
        a_stored_policy_of_the_same_name_does_not_spend_a_keys_quota,
        more_recipients_than_the_limit_can_never_pass,
        nothing_invalid_spends_quota,
        wrong_and_disabled_keys_are_told_apart,
        racing_sends_never_pass_the_limit_and_fill_it,
        usage_adds_nothing_and_reads_above_a_lowered_limit,
        the_day_begins_at_the_keys_own_midnight_also_across_a_change_of_clocks,
        an_idempotency_key_counts_and_queues_once,
        an_idempotency_key_is_forgotten_after_a_day,
        an_idempotency_key_with_another_message_is_refused,
        a_retry_is_answered_the_same_whatever_became_of_the_account,
        racing_retries_under_one_idempotency_key_are_one_message,
        deleting_an_unsent_message_gives_its_quota_back,
        the_sender_is_the_accounts_unless_given;
}
