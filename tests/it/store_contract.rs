//! What every store promises. Each sentence is held against each store.

mod attempts;
mod books;
mod deliveries;
mod losses;
mod probes;
mod rows;
mod takeovers;
mod testimony;
mod upkeep;

/// Each sentence becomes a test for each store, and one for PostgreSQL behind PgBouncer in transaction mode. One that is left out here is never used, which the compiler tells.
macro_rules! on_both {
    ($($chapter:ident { $($sentence:ident,)* })*) => {
        mod postgres {
            use crate::harness::world::World;
            $($(#[tokio::test] async fn $sentence() { super::$chapter::$sentence(World::postgres().await).await })*)*
        }
        mod pgbouncer {
            use crate::harness::world::World;
            $($(#[tokio::test] async fn $sentence() {
                if let Some(world) = World::pgbouncer().await {
                    super::$chapter::$sentence(world).await
                }
            })*)*
        }
        mod sqlite {
            use crate::harness::world::World;
            $($(#[tokio::test] async fn $sentence() { super::$chapter::$sentence(World::sqlite().await).await })*)*
        }
    };
}

on_both! {
    attempts {
        a_key_without_a_record_is_reserved_for_its_first_attempt,
        of_a_hundred_who_reserve_a_key_at_once_one_gets_it,
        of_many_keys_reserved_twice_at_once_each_has_one_attempt,
        who_comes_second_finds_what_was_reserved,
        services_scopes_spaces_and_keys_do_not_see_each_other,
        a_key_that_was_never_used_has_no_record,
        a_completed_key_keeps_its_response_byte_for_byte,
        a_large_body_survives,
        a_response_too_large_to_keep_is_completed_without_its_body,
        what_is_completed_does_not_change,
        the_same_settlement_again_changes_nothing,
        two_settlements_at_once_leave_one_of_them,
        a_superseded_attempt_settles_nothing,
        a_late_completion_is_taken_from_unknown_and_from_retryable,
        a_late_doubt_undoes_nothing_that_was_decided,
        a_thousand_attempts_at_once_all_end,
        what_was_acknowledged_is_there_after_reopening,
    }
    takeovers {
        of_many_who_take_a_key_over_at_once_one_gets_it,
        the_next_attempt_counts_on_and_brings_its_own_terms,
        past_its_ttl_a_key_begins_a_new_life,
        what_is_in_flight_and_a_response_within_its_ttl_cannot_be_taken_over,
        what_has_changed_since_it_was_seen_is_not_taken_over,
        taking_over_what_is_gone_reserves_it,
    }
    upkeep {
        the_sweeper_takes_what_nobody_can_be_running,
        the_sweeper_takes_what_is_past_its_deadline_whoever_runs_it,
        the_sweeper_stops_at_its_limit,
        a_lease_given_back_is_over_at_once,
        what_stands_under_an_instance_is_listed_once_it_is_old_enough,
        the_reaper_takes_the_oldest_of_what_is_past_its_ttl_and_nothing_else,
        a_remembered_key_outlives_its_response,
        a_remembered_key_is_forgotten_in_the_end,
        a_store_that_works_answers_a_ping,
        the_salt_stays_what_it_was,
        what_found_keys_is_told_where_it_has_changed,
    }
    losses {
        a_completion_whose_row_was_lost_is_stored_whole,
        an_unknown_outcome_whose_row_was_lost_stays_unknown,
        what_may_be_tried_again_is_not_written_anew,
        whoever_came_after_the_loss_is_not_overwritten,
        of_many_who_settle_or_reserve_a_lost_key_at_once_one_has_it,
        what_was_stored_anew_is_forgotten_like_the_rest,
    }
    probes {
        what_is_unknown_quiet_and_due_is_claimed_and_nothing_else,
        a_question_is_counted_when_it_is_claimed_and_the_next_comes_later_each_time,
        of_many_who_claim_at_once_each_gets_others,
        no_more_are_claimed_than_wanted_and_the_oldest_come_first,
        what_is_asked_about_is_what_was_reserved,
        a_response_completes_what_is_unknown,
        what_was_not_executed_is_taken_over_as_any_released_key,
        a_key_given_up_is_nobodys_to_take_and_still_takes_its_late_completion,
        a_denial_counts_only_as_the_answer_to_the_last_question,
        nothing_that_others_have_decided_is_changed,
        what_is_said_of_an_attempt_counts_for_no_other,
        each_decision_stands_in_the_audit_with_its_reason,
        the_next_attempt_is_asked_about_anew,
        pages_hold_what_was_settled_of_late_each_once,
    }
    books {
        what_is_listed_fits_the_filter_and_its_pages_meet_each_key_once,
        other_services_keys_are_not_there,
        each_change_leads_where_it_says_and_is_noted,
        what_an_operator_completed_is_replayed_for_its_routes_ttl,
        not_executed_is_believed_once_the_attempt_is_quiet,
        what_is_in_flight_is_decided_by_nobody,
        what_has_changed_since_it_was_seen_is_left_alone,
        of_many_who_decide_at_once_one_does,
        a_late_answer_counts_whatever_was_decided_unless_it_is_stored,
        what_was_released_is_not_completed_again_by_the_same_attempt,
        a_decision_that_cannot_be_noted_is_not_taken,
        a_purge_is_counted_and_those_who_remember_are_waited_for,
        keys_are_counted_by_route_and_state,
        the_audit_log_is_told_the_latest_first,
        what_was_decided_is_there_after_reopening,
    }
    testimony {
        how_far_an_attempt_has_come_goes_to_the_next_one,
        how_far_it_has_come_is_for_the_newest_attempt_of_a_key_that_is_not_completed_to_say,
        a_new_life_begins_where_nobody_has_come_yet,
        what_has_ended_is_free_as_soon_as_its_service_says_that_it_was_not_executed,
        what_is_running_is_free_once_it_has_ended_and_not_before,
        a_response_counts_whatever_its_service_has_said_before,
        a_word_counts_for_its_own_attempt_and_no_other,
        who_is_heard_again_has_said_the_same,
        a_response_given_apart_completes_its_key_as_an_answer_would,
    }
    deliveries {
        what_was_accepted_is_picked_up_as_an_attempt_with_its_request,
        of_many_who_accept_or_reserve_a_key_at_once_one_has_it,
        many_are_accepted_at_once_and_of_many_who_pick_up_each_gets_others,
        who_comes_second_finds_what_was_accepted_and_takes_nothing,
        a_record_that_the_next_request_may_have_is_accepted_over,
        past_its_ttl_a_delivered_key_is_accepted_anew,
        what_was_released_is_queued_again_and_due_when_it_was_said,
        a_late_completion_is_taken_while_it_waits_and_dropped_once_the_next_attempt_runs,
        an_unknown_outcome_is_picked_up_only_where_the_route_says_so_and_once_it_is_quiet,
        what_was_tried_often_or_long_enough_is_dead_with_its_reason,
        what_is_queued_anew_has_all_its_tries_again,
        a_request_goes_with_its_keys_end,
        an_attempt_that_was_not_sent_does_not_count,
        what_is_busy_is_left_out_and_the_others_are_picked_up,
        a_released_delivery_is_the_next_requests,
        the_sweeper_judges_a_delivery_as_any_attempt,
        a_late_doubt_or_release_undoes_nothing_that_was_decided_about_a_delivery,
        what_is_queued_does_not_starve_what_is_unknown_for_longer,
        a_delivery_whose_row_was_lost_is_stored_anew_as_accepted,
        a_request_without_a_key_goes_with_the_reaper,
        what_its_service_denies_of_a_delivery_is_noted_as_queued,
        a_backlog_hides_nothing_of_what_stands_in_another_state,
    }
    rows {
        a_row_that_does_not_decode_is_told_and_not_taken_for_a_free_key,
        no_impossible_row_can_be_written,
        a_bad_row_fails_alone,
        a_ttl_of_any_length_is_kept,
    }
}
