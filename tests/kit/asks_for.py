"""Which tests of what every flavour promises ask for which feature: by file, or by the name of the test.

`pytest --without FEATURE` skips the tests that ask for the feature; all others pass without it. A test asks
for `Waiting` if its calls share a batch only because a window gathers them.
"""

from __future__ import annotations

ASKS_FOR: dict[str, tuple[str, ...]] = {
    "OwnWorkers": (
        "test_a_call_from_inside_the_batch_function_is_an_error",
        "test_as_many_batches_run_at_once_as_may_while_that_changes",
        "test_every_call_is_answered_while_everything_changes",
        "test_it_stays_known_where_all_else_is_read_or_changed",
        "test_more_batches_run_at_once_while_one_runs",
    ),
    "OneProcess": (
        # The caller is shown the very object, or its traceback's frames: here a copy, and text.
        "test_an_error_comes_as_it_was_and_to_each_caller_its_own",
        "test_an_error_that_cannot_be_copied_and_is_returned_for_one_item_arrives_itself",
        "test_an_error_that_cannot_be_copied_arrives_itself_at_its_only_caller",
        "test_an_error_that_cannot_be_copied_is_not_shared_with_a_list",
        "test_equal_items_in_flight_run_once",
        "test_the_result_of_one_item_is_the_functions_own_even_a_list",
        "test_memory_views_are_copied",
        "test_rows_made_in_inference_mode_are_copied",
        "test_what_holds_no_view_is_the_object_that_the_function_made",
        "test_what_only_looks_like_an_array_is_handed_out_as_it_is",
        # A generator has no pickle.
        "test_a_batch_of_such_items_fails_as_one_and_runs_once",
        # The caller changes an item after the call: the server has a copy.
        "test_keys_that_change.py",
        # A client refuses `request_cache`.
        "test_request_cache.py",
        "test_a_result_that_cannot_be_copied_is_an_answer_like_others",
        "test_nothing_is_said_behind_a_cache_either",
        # A refusal, or the next piece, takes its time to come.
        "test_a_batch_function_knows_which_of_its_items_are_over",
        "test_a_bounded_queue_holds_streams_too",
        "test_a_call_that_cannot_be_in_time_is_refused_and_told_when_to_come_back",
        "test_a_consumer_that_is_too_far_behind_gets_an_error_of_its_own",
        "test_a_stream_that_is_closed_while_it_waits_never_runs",
        "test_the_place_of_a_caller_that_leaves_is_free_at_the_next_step",
        "test_pieces_that_are_not_taken_end_by_themselves",
        # The deadline of the server is later, by the time on the way.
        "test_a_deadline_holds_for_a_list_of_mixed_keys",
        # A client does not know which of the calls that it cancels have started.
        "test_a_batch_that_fails_has_the_size_it_ran_with_though_its_callers_have_left",
        "test_cancelling_at_shutdown_spares_the_stream_that_runs",
        "test_shutdown_with_callers_that_wait_for_room",
        # The server refuses it when it starts.
        "test_the_name_of_a_method_needs_an_instance_that_has_it",
        # Only the server warms up.
        "test_warm_up.py",
        # It is asked in the context of the caller; a client has a `fair_by` of its own.
        "test_a_function_of_no_argument_is_asked_in_the_caller_s_context",
        # The server's own thread calls the client, and waits for itself.
        "test_finalizers.py",
        "test_a_call_from_inside_the_batch_function_is_an_error",
        "test_a_handler_of_the_log_may_ask_the_batcher_and_may_fail",
        "test_a_call_from_inside_a_function_on_the_same_workers_is_refused",
        "test_a_call_from_inside_a_stage_would_wait_for_itself",
        "test_what_lands_after_the_cache_was_asked_does_not_run_twice",
        # The server keeps the instance, and knows the signature.
        "test_an_instance_with_stages_is_collected_and_its_threads_end",
        "test_an_item_of_a_method_has_no_instance",
        "test_the_signature_has_the_parameters_of_prepare_and_the_answer_of_finish",
        # The test looks into the driver, or at the `repr`.
        "test_batch_size_follows",
        "test_explain_says_how_busy_the_workers_are",
        "test_the_queue_is_used_with_the_lock_only",
    ),
    "FitsMemory": (
        "test_out_of_memory_amid_a_batch_teaches_how_many_items_fit",
        "test_out_of_memory.py",
        "test_memory_that_runs_out_does_not_run_them_again_either",
        "test_memory_that_runs_out_divides_into_smaller_sizes",
        "test_out_of_memory_before_the_first_piece_divides_the_batch",
    ),
    "Isolation": (
        "test_a_batch_that_fails_has_the_size_it_ran_with_though_its_callers_have_left",
        "test_a_restart_in_any_stage_reaches_callers_as_its_cause",
        "test_callers_of_a_function_that_has_its_worker_restarted_get_the_cause",
        "test_the_wait_of_each_call_is_told_once",
        "test_an_item_that_fails_with_the_first_step_is_found",
        "test_batch_fault.py",
        "test_isolate_errors.py",
        "test_wrong_results.py",
        "test_a_broken_worker_is_made_anew_and_its_batch_runs_once_more",
        "test_a_call_that_runs_ahead_amid_an_outage_holds_up_the_others_until_its_end",
        "test_a_number_that_is_right_by_chance_is_found_out",
        "test_a_list_raises_the_error_of_its_first_item_that_fails",
        "test_an_item_that_breaks_each_worker_fails_alone",
        "test_calls_that_were_to_run_once_more_get_the_error_of_a_start_that_fails",
        "test_an_error_that_cannot_be_copied_arrives_itself_wherever_there_is_one_caller",
        "test_an_item_that_fails_before_the_first_piece_fails_alone",
        "test_an_item_that_fails_is_the_only_one_that_does",
        "test_an_item_that_fails_in_any_stage_fails_alone_and_its_error_names_the_stage",
        "test_as_many_batches_run_at_once_as_may_while_that_changes",
        "test_isolation_can_be_switched_on_while_a_batch_runs",
        "test_items_that_are_no_such_things_are_run_again",
        "test_one_such_item_among_others_is_enough",
        "test_return_exceptions_leaves_them_in_their_places",
        "test_the_function_sees_only_these_sizes_and_each_caller_has_what_it_would_have_alone",
        "test_whatever_fails_in_any_stage_each_caller_has_what_it_would_have_alone",
    ),
    "Waiting": (
        "test_a_batch_that_fails_has_the_size_it_ran_with_though_its_callers_have_left",
        "test_a_batch_function_knows_which_of_its_items_are_over",
        "test_batch_fault.py",
        "test_isolate_errors.py",
        "test_streams_errors.py",
        "test_streams_pieces.py",
        "test_used_up_items.py",
        "test_wrong_results.py",
        "test_a_burst_that_fits_one_batch_goes_as_one",
        "test_a_consumer_that_left_keeps_no_pieces",
        "test_a_full_batch_starts_before_its_window_ends",
        "test_a_full_queue_does_not_wait_for_company",
        "test_a_key_in_its_window_holds_up_no_other_and_is_not_held_up",
        "test_a_refused_call_does_not_keep_others_from_a_full_batch",
        "test_a_snapshot_accounts_for_every_item_while_batches_run",
        "test_a_stream_knows_its_batch",
        "test_an_item_that_fails_is_the_only_one_that_does",
        "test_an_error_that_cannot_be_copied_and_is_returned_for_one_item_arrives_itself",
        "test_an_error_that_cannot_be_copied_arrives_at_several_callers_as_a_batch_error",
        "test_an_error_that_cannot_be_copied_is_not_shared_with_a_list",
        "test_arrays_are_grouped_by_call",
        "test_each_key_fills_batches_of_its_own",
        "test_of_a_lone_caller_nothing_is_said_that_only_company_tells",
        "test_printed_stats_are_a_table",
        "test_queued_items_follow_at_the_next_batch",
        "test_streams_are_grouped",
        "test_the_errors_of_numpy_and_pydantic_come_as_they_were",
        "test_when_nobody_is_left_the_generator_is_closed",
    ),
    "LearnedLengths": ("test_stats_say_what_was_padded_and_how_batches_were_chosen",),
    "FixedSizes": ("test_batch_sizes.py", "test_it_shares_no_batch_with_calls"),
    "WithDeadlines": ("test_a_deadline_shorter_than_the_window_is_met",),
    "BestSizes": (),
    "Backlog": (
        "test_expected_wait.py",
        "test_a_call_that_cannot_be_in_time_is_refused_and_told_when_to_come_back",
        "test_a_finalizer_may_ask_the_batcher_in_the_middle_of_each_step",
        "test_a_refusal_for_another_tenant_counts_once_and_says_when_to_come_back",
        "test_every_call_has_the_deadline_of_the_decorator_unless_it_says_otherwise",
        "test_the_expected_wait_is_not_known_at_first_and_grows_with_what_waits",
    ),
}
