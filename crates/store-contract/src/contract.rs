//! The sentences, by chapter. Each is a function of a store of its own, and panics where the store breaks it.

mod admin;
mod attempts;
mod corrections;
mod decisions;
mod deliveries;
mod events;
mod inquiries;
mod kept_requests;
mod live_keys;
mod losses;
mod pick_ups;
mod rows;
mod service_reports;
mod settlements;
mod takeovers;
mod upkeep;
mod weekly_counts;

use crate::store_fixture::StoreFixture;

/// Hands all sentences to a macro, which makes tests of them.
#[macro_export]
macro_rules! sentences {
    ($tests:ident) => {
        $tests! {
            attempts {
                a_key_without_a_record_is_reserved_for_its_first_attempt,
                one_of_a_hundred_simultaneous_reservations_gets_the_key,
                many_keys_reserved_twice_at_once_have_one_attempt_each,
                a_second_reservation_finds_the_first_record,
                equal_keys_of_other_services_scopes_or_spaces_are_distinct,
                a_key_that_was_never_used_has_no_record,
                a_completed_key_keeps_its_response_byte_for_byte,
                a_large_body_survives,
                a_response_too_large_to_keep_is_completed_without_its_body,
                a_completed_record_does_not_change,
                the_same_settlement_again_changes_nothing,
                two_settlements_at_once_leave_one_of_them,
                a_superseded_attempt_settles_nothing,
                a_late_completion_is_taken_from_unknown_and_from_retryable,
                a_late_unknown_settlement_overwrites_no_decision,
                a_thousand_attempts_at_once_all_end,
                acknowledged_writes_survive_reopening,
            }
            live_keys {
                live_keys_of_a_holder_are_counted_up_to_a_limit,
                a_key_and_its_caller_s_other_keys_of_one_holder_count_for_another,
                a_key_counts_for_its_first_holder_until_it_is_deleted,
                accepted_keys_and_restored_rows_count_for_their_holder,
            }
            settlements {
                a_key_with_earlier_attempts_or_a_recovery_point_is_not_forgotten,
                a_settlement_is_taken_by_the_table_of_outcomes_and_states,
            }
            takeovers {
                one_of_many_simultaneous_takeovers_gets_the_key,
                the_attempts_before_the_newest_are_kept_up_to_twenty,
                the_next_attempt_increments_the_number_and_has_its_own_retention,
                the_parts_are_those_of_the_request_whose_fingerprint_the_record_has,
                a_key_past_its_ttl_starts_over,
                an_attempt_in_flight_and_a_response_within_its_ttl_cannot_be_taken_over,
                a_changed_record_is_not_taken_over,
                a_takeover_of_a_deleted_record_reserves_the_key,
                a_record_settled_after_it_was_seen_past_its_ttl_is_not_taken_over,
                a_redelivery_takes_over_a_remembered_key_past_its_ttl_and_no_other,
            }
            upkeep {
                the_sweeper_marks_attempts_without_a_live_instance_unknown,
                the_sweeper_marks_attempts_past_their_deadline_unknown,
                the_deadline_of_an_attempt_in_flight_moves_and_never_comes_earlier,
                the_sweeper_stops_at_its_limit,
                a_clock_ahead_of_the_caller_ends_no_lease_and_no_deadline,
                a_released_lease_expires_at_once,
                an_instances_attempts_are_listed_past_a_minimum_age,
                the_reaper_deletes_the_oldest_expired_rows_and_nothing_else,
                a_backlog_of_forgotten_and_remembered_keys_is_reaped_in_one_pass,
                a_clock_ahead_of_the_caller_ends_no_ttl,
                the_reaper_leaves_records_that_were_settled_before_the_watch,
                the_latest_hold_of_ttls_is_known_to_every_instance,
                a_remembered_key_outlives_its_response,
                a_remembered_key_is_forgotten_in_the_end,
                a_working_store_answers_a_ping,
                a_salt_is_replaced_only_where_it_is_the_expected_one,
                the_salt_does_not_change,
                the_routes_that_were_read_are_replaced_and_no_others,
            }
            weekly_counts {
                the_counts_of_all_instances_are_added_and_no_batch_twice,
                callers_past_the_limit_are_counted_together_and_old_weeks_are_deleted,
                the_callers_of_a_week_come_by_their_sums_each_with_all_its_kinds,
                the_counts_of_a_forgotten_caller_name_nobody,
            }
            losses {
                a_record_that_a_standby_may_lack_answers_no_look_up,
                a_completion_with_a_lost_row_is_stored_as_a_new_row,
                an_unknown_outcome_with_a_lost_row_stays_unknown,
                a_retryable_outcome_with_a_lost_row_is_not_stored,
                a_new_owner_after_a_lost_row_is_not_overwritten,
                one_of_many_simultaneous_settlements_and_reservations_gets_a_lost_key,
                a_restored_row_is_reaped_as_any_other,
                an_outcome_with_a_lost_takeover_replaces_the_record_before_it,
                an_outcome_with_a_lost_new_life_replaces_the_expired_record,
                a_response_with_a_lost_takeover_settles_the_record_that_was_given_up_since,
                a_response_stored_since_the_takeover_was_lost_is_kept,
                a_lost_takeover_replaces_no_later_attempt,
            }
            inquiries {
                only_unknown_quiet_and_due_keys_are_claimed,
                an_inquiry_is_counted_when_claimed_and_the_intervals_grow,
                concurrent_claims_get_disjoint_keys,
                a_claim_takes_at_most_its_limit_oldest_first,
                a_claim_takes_at_most_its_limit_of_several_routes,
                a_clock_ahead_of_the_caller_makes_no_key_quiet,
                a_claim_returns_the_data_of_its_reservation,
                an_inquirys_response_completes_an_unknown_key,
                a_key_found_not_executed_is_taken_over_as_any_released_one,
                a_key_given_up_cannot_be_taken_over_and_accepts_its_late_completion,
                a_not_executed_reply_counts_only_for_the_last_inquiry,
                an_inquirys_result_overwrites_no_decision,
                an_inquirys_result_applies_only_to_its_attempt,
                each_inquiry_decision_is_audited_with_its_reason,
                the_next_attempts_inquiries_start_at_zero,
                pages_of_recent_settlements_have_each_one_once,
            }
            admin {
                instances_of_a_service_are_listed_with_their_leases,
                the_audit_log_can_be_appended_to_and_not_changed,
                a_list_matches_its_filter_and_its_pages_have_each_key_once,
                keys_are_listed_the_newest_first_by_time_path_and_value,
                other_services_keys_are_not_listed,
                keys_are_counted_by_route_and_state,
                the_audit_log_lists_the_latest_first,
            }
            decisions {
                each_decision_has_its_effect_and_is_audited,
                a_response_entered_by_an_operator_is_replayed_for_the_routes_ttl,
                not_executed_is_believed_once_the_attempt_is_quiet,
                no_decision_applies_to_a_key_in_flight,
                a_decision_does_not_apply_to_a_changed_key,
                a_proposal_is_audited_once_for_the_key_as_it_was_seen_and_changes_nothing,
                one_of_many_simultaneous_decisions_applies,
                a_late_answer_overrides_a_decision_unless_a_response_is_stored,
                a_released_key_is_not_completed_again_by_the_same_attempt,
                a_decision_that_cannot_be_audited_is_not_applied,
                a_purge_counts_its_keys_and_waits_for_instances_with_a_cache,
                decisions_survive_reopening,
            }
            corrections {
                only_a_response_that_an_operator_has_written_is_replaced,
                a_redacted_key_keeps_nothing_of_its_caller_and_no_retry_of_it_is_executed,
            }
            service_reports {
                a_reservation_finds_its_key_only_for_its_service_and_its_newest_attempt,
                an_attempts_recovery_point_goes_to_the_next_attempt,
                only_the_newest_attempt_of_an_uncompleted_key_sets_the_recovery_point,
                a_key_past_its_ttl_starts_without_a_recovery_point,
                an_ended_attempt_reported_as_not_executed_is_released_at_once,
                a_running_attempt_reported_as_not_executed_is_released_at_its_end,
                a_response_counts_after_a_report_of_not_executed,
                a_response_that_leaves_the_outcome_unknown_counts_after_a_report_of_not_executed,
                a_report_applies_only_to_its_own_attempt,
                a_repeated_report_has_the_same_result,
                a_reported_response_completes_its_key_as_an_answer_does,
            }
            deliveries {
                one_of_many_simultaneous_enqueues_or_reservations_gets_the_key,
                a_second_enqueue_finds_the_first_record_and_changes_nothing,
                an_enqueue_replaces_a_released_record,
                a_delivered_key_past_its_ttl_is_accepted_again,
                a_released_delivery_is_queued_again_with_its_due_time,
                a_late_completion_counts_while_a_delivery_waits_and_not_once_its_next_attempt_runs,
                a_requeued_delivery_has_all_its_attempts_again,
                a_stored_request_is_deleted_when_its_key_ends,
                an_inquiry_deletes_a_stored_request_where_it_completes_the_key_and_nowhere_else,
                a_released_delivery_is_free_for_the_next_request,
                the_sweeper_treats_a_delivery_as_any_attempt,
                a_late_unknown_or_released_settlement_overwrites_no_decision_on_a_delivery,
                a_delivery_with_a_lost_row_is_stored_again_as_accepted,
                a_delivery_reported_as_not_executed_is_audited_as_queued,
                a_backlog_hides_no_delivery_in_another_state,
            }
            kept_requests {
                a_kept_request_is_repeated_while_its_outcome_is_unknown,
                a_kept_request_is_not_repeated_after_its_window_or_without_one,
                a_kept_request_of_a_crashed_instance_is_repeated,
                a_kept_request_that_was_not_executed_is_free_for_the_next,
                a_kept_request_goes_with_its_settlement,
            }
            pick_ups {
                an_accepted_delivery_is_picked_up_as_an_attempt_with_its_request,
                an_outcome_with_a_lost_pick_up_is_not_delivered_again,
                an_unknown_delivery_with_a_lost_pick_up_keeps_its_pause,
                concurrent_pick_ups_get_disjoint_deliveries,
                an_unknown_delivery_is_picked_up_only_under_a_retry_policy_and_after_its_quiet_time,
                a_pick_up_marks_a_delivery_past_its_limits_dead_with_the_reason,
                a_clock_ahead_of_the_caller_makes_no_delivery_due,
                an_attempt_that_was_not_sent_does_not_count,
                a_pick_up_skips_locked_deliveries,
                queued_deliveries_do_not_starve_older_unknown_ones,
                a_pick_up_starts_no_more_of_a_route_than_its_slots,
            }
            events {
                each_end_of_an_attempt_tells_what_became_of_the_key,
                a_response_that_an_operator_corrects_is_told_again,
                a_stored_refusal_is_told_as_one,
                decisions_and_given_up_deliveries_are_told,
                a_request_accepted_over_an_unknown_key_tells_nothing_of_the_attempt_before,
                an_outcome_stored_over_another_attempts_is_told,
                an_event_has_what_its_sink_asks_for,
                routes_that_are_stored_beside_others_change_none_of_them,
                of_each_key_only_the_oldest_event_that_waits_is_claimed,
                a_claim_ends_with_its_lease_and_a_dead_event_with_a_requeue,
                an_event_of_another_time_under_the_same_number_is_not_ended,
                dead_events_are_discarded_with_an_entry_in_the_audit_log_each,
                an_event_of_a_purged_key_keeps_neither_the_key_nor_the_response,
                concurrent_claims_get_disjoint_events,
            }
            rows {
                an_undecodable_row_is_an_error_and_no_free_key,
                no_impossible_row_can_be_written,
                a_row_that_violates_a_constraint_fails_alone,
                a_ttl_of_any_length_is_kept,
            }
        }
    };
}

// The compiler reports a sentence that the table lacks as unused.
macro_rules! publish {
    ($($chapter:ident { $($sentence:ident,)* })*) => {
        $($(
            #[allow(missing_docs, reason = "the name says it")]
            pub async fn $sentence(world: StoreFixture) {
                $chapter::$sentence(world).await;
            }
        )*)*
    };
}
sentences!(publish);
